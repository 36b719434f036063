"""``tornado-idv migrate``: whether a shadow has the same users as the backends that answer."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.backends import backend_named, load_settings, reporting
from tornado_idv.cli.common import (
    Record,
    complete_backend,
    config_option,
    counted,
    examples,
    json_option,
    show,
)
from tornado_idv.cli.users.formats import FIELDS
from tornado_idv.errors import StartError
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.log_format import format_time
from tornado_idv.lookup.shadow_file import VERDICTS, ShadowFile, Summary


@click.group()
def migrate() -> None:
    """Report whether a shadow has the same users as the source.

    BACKEND is one with shadow.state in config.yaml, and may be left out if there is only one. What
    a running service compares is counted some seconds later; what it compared before the last
    `users import` into BACKEND is not.

    Exit codes: 0 done; 1 check has found a blocker; 2 wrong use; 3 could not be determined.
    """


def _command(function: Callable[..., Any]) -> Callable[..., Any]:
    backend = click.argument(
        "name", metavar="[BACKEND]", required=False, shell_complete=complete_backend
    )
    return backend(config_option(json_option(function)))


@migrate.command(epilog=examples("migrate status", "migrate status new --json"))
@_command
def status(*, name: str | None, config_path: Path, as_json: bool) -> None:
    """Show how many users were compared, and how many are not the same.

    A user who was looked up by nickname and by card counts once. The totals are lookups.
    """
    with reporting(as_json=as_json):
        name, file = _shadow(config_path, name)
        record = _record(name, file.summary())
    show(record, _lines(record), as_json=as_json)


@migrate.command("report", epilog=examples("migrate report", "migrate report new --reveal"))
@_command
@click.option("--reveal", is_flag=True, help="Show nicknames and card numbers in full.")
def list_users(*, name: str | None, reveal: bool, config_path: Path, as_json: bool) -> None:
    """List the users who are not the same, or could not be verified.

    Users are shown as keyed hashes, from which no nickname can be computed. With --reveal they are
    the nicknames and card numbers that were looked up.
    """
    with reporting(as_json=as_json):
        name, file = _shadow(config_path, name)
        users: list[Record] = [each._asdict() for each in file.listed()]
    for each in users:
        each["compared"] = format_time(each["compared"])
        if not reveal:
            del each["queries"]
    lines = (
        f"{each['compared']}  {each['result']:10}  {' '.join(each.get('queries', [each['user']]))}"
        f"{': ' if each['fields'] else ''}{', '.join(each['fields'])}"
        for each in users
    )
    show({"backend": name, "users": users}, lines if users else ["none"], as_json=as_json)


@migrate.command(epilog=examples("migrate check", "migrate check new --accept plan"))
@_command
@click.option(
    "--min-users",
    type=click.IntRange(min=1),
    metavar="N",
    default=1000,
    show_default=True,
    help="The number of users that must have been compared.",
)
@click.option(
    "--accept",
    "accepted",
    type=click.Choice(FIELDS),
    metavar="FIELD",
    multiple=True,
    help=f"A field in which users may differ: {', '.join(FIELDS)}. May be repeated.",
)
def check(
    *,
    name: str | None,
    min_users: int,
    accepted: tuple[str, ...],
    config_path: Path,
    as_json: bool,
) -> None:
    """Report what is in the way of answering from the shadow.

    Blockers are users who are missing or extra, who differ in a field that --accept does not name,
    or could not be verified; too few users; and an import that has not ended.

    Exit codes: 0 no blocker; 1 blockers; 2 wrong use; 3 could not be determined.
    """
    with reporting(as_json=as_json):
        name, file = _shadow(config_path, name)
        summary = file.summary()
    blockers = [*_blockers(name, summary, min_users, frozenset(accepted))]
    record = {"ok": not blockers, **_record(name, summary), "blockers": blockers}
    compared = counted(record["users"], "user")
    lines = [each["message"] for each in blockers] or [f"no blocker: {compared} compared"]
    show(record, lines, as_json=as_json)
    sys.exit(Exit.NO if blockers else Exit.DONE)


def _shadow(config_path: Path, name: str | None) -> tuple[str, ShadowFile]:
    """Return a shadow's name and file; raises `StartError` if there is none."""
    settings, _ = load_settings(config_path)
    if name is not None:
        options = backend_named(settings.backends, name)
    elif len(settings.shadows) > 1:
        names = ", ".join(each.name for each in settings.shadows)
        raise click.UsageError(f"there are several shadows: {names}; name one")
    else:
        options = next(iter(settings.shadows), settings.backends[-1])
    if options.shadow is None or options.shadow.state is None:
        example = "shadow: {sample: 5%, state: shadow.db}"
        what = "state of its shadow" if options.shadow else "shadow"
        raise StartError(
            f"the backend {options.name} has no {what} in {config_path}; write {example}"
        )
    return options.name, ShadowFile(options.shadow.state, options.name)


def _record(name: str, summary: Summary) -> Record:
    """Return the numbers for scripts."""
    fields = Counter[str]()
    for names, count in summary.differing.items():
        fields.update(dict.fromkeys(names, count))
    times = {
        each: None if (at := getattr(summary, each)) is None else format_time(at)
        for each in ("since", "imported", "importing")
    }
    compared = sum(summary.users.values()) - summary.users["unverified"]
    return {
        "backend": name,
        **times,
        "days": summary.days,
        "users": compared,
        **summary.users,
        "fields": dict(sorted(fields.items())),
        "totals": summary.totals,
    }


def _lines(record: Record) -> Iterator[str]:
    yield "{backend}: compared since {since}; last import: {}".format(
        record["imported"] or "none", **record
    )
    if record["importing"]:
        yield "import that has not ended: {importing}".format_map(record)
    yield f"users: {record['users']}, on {counted(record['days'], 'day')}"
    for each in VERDICTS:
        yield f"  {each}: {record[each]}"
        if each == "differs":
            yield from (f"    {field}: {count}" for field, count in record["fields"].items())
    yield "lookups:"
    yield from (f"  {result}: {count}" for result, count in sorted(record["totals"].items()))


def _blockers(
    name: str, summary: Summary, min_users: int, accepted: frozenset[str]
) -> Iterator[Record]:
    """Yield what is in the way."""
    if summary.importing is not None:
        began = format_time(summary.importing)
        text = (
            f"the import into {name} that began {began} has not ended; repeat it if it was stopped"
        )
        yield {"kind": "importing", "message": text}
    users = summary.users
    compared = sum(users.values()) - users["unverified"]
    if compared < min_users:
        since = "the last import" if summary.imported else "the first comparison"
        text = f"{counted(compared, 'user')} compared since {since}; --min-users is {min_users}"
        yield {"kind": "min_users", "users": compared, "message": text}
    for kind, text in (
        ("missing", f"missing from {name}"),
        ("extra", f"extra in {name}"),
        ("unverified", "not verified"),
    ):
        if count := users[kind]:
            yield {"kind": kind, "users": count, "message": f"{counted(count, 'user')} {text}"}
    others = Counter[tuple[str, ...]]()
    for fields, count in summary.differing.items():
        others[tuple(sorted(fields - accepted))] += count
    for left, count in others.items():
        if left:
            text = f"{counted(count, 'user')} with another {' and '.join(left)}"
            yield {"kind": "differs", "users": count, "fields": left, "message": text}
