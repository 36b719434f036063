"""``tornado-idv status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from tornado_idv.cli.common import Record, print_json
from tornado_idv.cli.running.admin_client import admin_options, status_or_exit
from tornado_idv.commands import printable


@click.command()
@admin_options
def status(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Show what the running service does.

    Exit codes: 0 done; 3 no response.
    """
    record = status_or_exit(config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record)
        return
    for line in _lines(record):
        click.echo(printable(line))


def _lines(record: Record) -> Iterator[str]:
    yield f"{'state:':14}{record['status']}"
    yield f"{'version:':14}{record['version']}, up for {record['uptime_s']:.0f} s"
    for each in record.get("workers", ()):
        yield f"{'worker:':14}{_worker(each)}"
    for operation, codes in sorted(record["requests"].items()):
        counts = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        yield f"{'requests:':14}{operation}: {counts}"
    for each in record["backends"]:
        yield f"{'backend:':14}{each['name']} ({each['kind']}): {_condition(each)}"
    yield f"{'cache:':14}{cache_sentence(record['cache'])}"
    if record["shared_cache"]:
        yield f"{'shared cache:':14}{_shared_cache(record['shared_cache'])}"
    keys = record["keys"]
    expiry = f", the next expires at {keys['next_expiry']}" if keys["next_expiry"] else ""
    yield f"{'keys:':14}{keys['count']}{expiry}"
    if record["key_store"] and record["key_store"]["error"]:
        yield f"{'key store:':14}{record['key_store']['error']}"
    if record["shared_limits"] and record["shared_limits"]["error"]:
        yield f"{'limits:':14}not shared: {record['shared_limits']['error']}"
    if record["last_reload"]:
        yield f"{'last reload:':14}{_reload(record['last_reload'])}"
    yield f"{'connections:':14}{sum(record['connections'].values())}"
    yield f"{'log lines:':14}{record['log_dropped']} dropped"


def _worker(each: Record) -> str:
    return (
        f"{each['name']} (pid {each['pid']}): {each['phase']}, up for {each['uptime_s']:.0f} s, "
        f"{each['requests']} requests"
    )


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


def cache_sentence(cache: Record) -> str:
    """Return the cache's figures as a sentence."""
    entries, lookups = cache["entries"], cache["lookups"]
    total = sum(lookups.values())
    ratio = f"{lookups['hit'] / total:.1%} of {total} lookups were hits" if total else "no lookups"
    return (
        f"{entries['found']} found and {entries['negative']} not found; {ratio}; "
        f"{cache['evictions']} evictions"
    )
