"""The command ``tornado-idv status``."""

from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import click

from tornado_idv.cli.admin_client import AdminListener, admin_command, cache_sentence
from tornado_idv.cli.common import Record, examples


@click.command(epilog=examples("status"))
@admin_command
def status(admin: AdminListener) -> NoReturn:
    """Show the state of the running service.

    Exit codes: 0 done; 3 no response.
    """
    record = admin.request("GET", "/status.json")
    admin.show(record, (f"{name + ':':14}{text}" for name, text in _status(record)))


def _status(record: Record) -> Iterator[tuple[str, str]]:
    yield "state", record["status"]
    yield "version", f"{record['version']}, up for {record['uptime_s']:.0f} s"
    for each in record.get("workers", ()):
        process = f"{each['name']} (pid {each['pid']}): {each['phase']}"
        yield "worker", f"{process}, up for {each['uptime_s']:.0f} s, {each['requests']} requests"
    for operation, codes in sorted(record["requests"].items()):
        counts = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        yield "requests", f"{operation}: {counts}"
    for each in record["backends"]:
        servers = "".join(f", {used['server']} ({used['role']})" for used in each["servers"])
        yield "backend", f"{each['name']} ({each['kind']}): {_condition(each)}{servers}"
    for each in record.get("shadows", ()):
        found = [f"{count} {word}" for word, count in each["comparisons"].items() if count]
        compared = ", ".join(found) or "none yet"
        yield "shadow", f"{each['name']} ({each['kind']}): {_condition(each)}; {compared}"
    yield "cache", cache_sentence(record["cache"])
    if record.get("shared_cache"):
        yield "shared cache", _shared_cache(record["shared_cache"])
    keys = record["keys"]
    expiry = f", the next expires at {keys['next_expiry']}" if keys["next_expiry"] else ""
    yield "keys", f"{keys['count']}{expiry}"
    if record["key_store"] and record["key_store"]["error"]:
        yield "key store", record["key_store"]["error"]
    for name in ("cache_snapshot", "unix_sockets"):
        if (part := record.get(name)) and part["error"]:
            yield name.partition("_")[2], part["error"]
    if record["last_reload"]:
        yield "last reload", _reload(record["last_reload"])
    yield "connections", f"{sum(record['connections'].values())}"
    yield "log lines", f"{record['log_dropped']} dropped"


def _reload(last: Record) -> str:
    text = f"{last['result']} at {last['time']}"
    if last["problem"]:
        return f"{text}: {last['problem']}"
    names = ", ".join(last["needs_restart"])
    return f"{text}; after a restart: {names}" if names else text


def _condition(each: Record) -> str:
    if each["available"]:
        return f"degraded: {each['problem']}" if each["problem"] else "available"
    since = f" since {each['failing_since']}" if each["failing_since"] else ""
    breaker = each["breaker"].replace("_", "-")
    probe = f", next probe in {each['next_probe_s']:g} s" if each["next_probe_s"] else ""
    return f"failing{since}: {each['last_error']}; circuit breaker {breaker}{probe}"


def _shared_cache(each: Record) -> str:
    calls: Counter[str] = Counter(each["calls"])
    return (
        f"{each['kind']}: {_condition(each)}; {calls['hit']} hits, {calls['miss']} misses, "
        f"{calls['failed']} failed, {calls['skipped']} skipped; {calls['purged']} purges "
        f"delivered, {each['pending_purges']} pending"
    )
