"""``tornado-idv cache``, ``explain``, ``health``, ``reload`` and ``status``."""

from __future__ import annotations

import http.client
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from tornado_idv.cli.common import Record, exit_on_error, print_json
from tornado_idv.cli.running.admin_client import (
    admin_options,
    admin_request,
    post_or_exit,
    status_or_exit,
)
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.commands import Exit, printable

_DONE = {
    "all": "Purged the whole cache.",
    "backend": 'Purged the answers of the backend, and every "not found".',
    "user": 'Purged the answers about the user, and every "not found".',
}


@click.group()
def cache() -> None:
    """Show or purge the cache of the running service."""


@cache.command()
@admin_options
def stats(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Show the number of entries and the hit ratio.

    Exit codes: 0 done; 3 no response.
    """
    record = status_or_exit(config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record["cache"])
    else:
        click.echo(_cache_sentence(record["cache"]))


@cache.command()
@click.option("--nickname", help="Purge the answers about the user with this nickname.")
@click.option("--card", "card_number", help="Purge the answers about the user with this card.")
@click.option("--backend", help="Purge the answers of this backend.")
@click.option("--all", "everything", is_flag=True, help="Purge everything.")
@admin_options
def purge(
    *,
    nickname: str | None,
    card_number: str | None,
    backend: str | None,
    everything: bool,
    config_path: Path,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Drop cached answers, by exactly one of four options.

    Exit codes: 0 done; 2 wrong use; 3 no response, or not delivered to the shared cache.
    """
    given: Record = {"nickname": nickname, "card_number": card_number, "backend": backend}
    given = {name: value for name, value in given.items() if value is not None}
    if everything:
        given["all"] = True
    if len(given) != 1:
        raise click.UsageError("give exactly one of --nickname, --card, --backend and --all")
    record = post_or_exit("/cache/purge", given, config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record)
    else:
        click.echo(_DONE[record["purged"]])


_CODES = {"found": Exit.DONE, "not_found": Exit.NO}
_RESULTS = {"found": "found", "not_found": "not found"}
_CACHED = {
    "found": "a found user",
    "not_found": '"not found"',
    "stale": "an expired answer, which is served only if the lookup fails",
    "failure": "a failure, which is repeated for cache.failure_memo",
    "absent": "nothing",
}


@click.command()
@click.argument("who", metavar="@NICK|URL|DIGITS")
@admin_options
def explain(*, who: str, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Show how each backend of the running service responds.

    The backends are called past the cache, and nothing is cached. The user is not shown.

    Exit codes: 0 found; 1 not found; 2 wrong use; 3 could not be determined.
    """
    name = "card_number" if who.isdigit() else "input"
    record = post_or_exit("/explain", {name: who}, config_path, token_file, as_json=as_json)
    if as_json:
        print_json(record)
    else:
        cached = record["cache"]
        click.echo(f"cached: {_CACHED.get(cached, printable(cached))}")
        for each in record["backends"]:
            click.echo(printable(f"asked {each['backend']}: {each['outcome']} ({each['ms']} ms)"))
        click.echo(f"result: {_RESULTS.get(record['result'], 'could not be determined')}")
    sys.exit(_CODES.get(record["result"], Exit.UNDETERMINED))


_SENTENCES = {
    "ready": "The service is ready.",
    "degraded": "The service is ready, but degraded: {parts}.",
    "starting": "The service is starting: no worker serves yet.",
    "draining": "The service is draining: it is about to stop.",
}


@click.command()
@admin_options
def health(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Report whether the running service is ready.

    Exit codes: 0 ready, also if degraded; 1 starting or draining; 3 no response.
    """
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        status, record = admin_request("GET", "/health/ready", config_path, token_file)
    if as_json:
        print_json(record)
    else:
        sentence = _SENTENCES.get(str(record["status"]), "The service is {status}.")
        parts = ", ".join(map(str, record.get("degraded", ())))
        click.echo(printable(sentence.format(parts=parts, status=record["status"])))
    sys.exit(Exit.DONE if status == 200 else Exit.NO)  # noqa: PLR2004 - OK


_TIMEOUT = 150.0
"""Seconds: longer than the service waits for its backends."""


@click.command()
@admin_options
def reload(*, config_path: Path, token_file: Path | None, as_json: bool) -> None:
    """Reload the configuration of the running service.

    All of it is applied, or nothing.

    Exit codes: 0 done; 1 the configuration is wrong, and the old one stays in force; 3 could not
    be determined: no response, or a file or backend that cannot be opened.
    """
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json, other_codes={ConfigError: Exit.NO}):
        status, record = admin_request("POST", "/reload", config_path, token_file, timeout=_TIMEOUT)
    if as_json:
        print_json(record)
    else:
        _print_reload(record)
    sys.exit(Exit.NO if status == http.client.UNPROCESSABLE_ENTITY else Exit.DONE)


def _print_reload(record: Record) -> None:
    if record["status"] != "ok":
        click.echo(printable(str(record.get("message"))), err=True)
        for problem in record.get("problems", ()):
            click.echo(printable(str(problem)), err=True)
        return
    click.echo("The configuration is reloaded.")
    if record["needs_restart"]:
        names = ", ".join(map(str, record["needs_restart"]))
        click.echo(printable(f"These settings take effect after a restart: {names}"))


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
    for line in _status_lines(record):
        click.echo(printable(line))


def _status_lines(record: Record) -> Iterator[str]:
    yield f"{'state:':14}{record['status']}"
    yield f"{'version:':14}{record['version']}, up for {record['uptime_s']:.0f} s"
    for each in record.get("workers", ()):
        yield (
            f"{'worker:':14}{each['name']} (pid {each['pid']}): {each['phase']}, "
            f"up for {each['uptime_s']:.0f} s, {each['requests']} requests"
        )
    for operation, codes in sorted(record["requests"].items()):
        counts = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        yield f"{'requests:':14}{operation}: {counts}"
    for each in record["backends"]:
        yield f"{'backend:':14}{each['name']} ({each['kind']}): {_condition(each)}"
    yield f"{'cache:':14}{_cache_sentence(record['cache'])}"
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


def _cache_sentence(cache: Record) -> str:
    entries, lookups = cache["entries"], cache["lookups"]
    total = sum(lookups.values())
    ratio = f"{lookups['hit'] / total:.1%} of {total} lookups were hits" if total else "no lookups"
    return (
        f"{entries['found']} found and {entries['negative']} not found; {ratio}; "
        f"{cache['evictions']} evictions"
    )
