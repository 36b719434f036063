"""The commands ``tornado-idv migrate``. They report the comparisons of a shadow."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.backends import load_settings, reporting
from tornado_idv.cli.common import (
    Record,
    complete_backend,
    config_option,
    counted,
    examples,
    json_option,
    show,
)
from tornado_idv.features.shadow.file import FAILED, STORED, Contents, ShadowFile
from tornado_idv.identifiers import FIELDS
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.log_format import format_time

_WRITTEN_WITHIN = 60.0
"""If the service has not written the file for this many seconds, `check` reports a blocker."""


@click.group()
def migrate() -> None:
    """Report differences between a shadow and the backends in use.

    BACKEND is a backend with shadow.state in config.yaml. It may be omitted if there is only one.
    Reports cover the time since the last `users import` into BACKEND. A new comparison is visible
    after a few seconds.

    Exit codes: 0 done; 1 check has found a blocker; 2 wrong use; 3 could not be determined.
    """


def _on_file(command: Callable[..., None]) -> Callable[..., Any]:
    """Add BACKEND, --config and --json to a command about a shadow.

    The command gets the JSON record about the shadow, and the contents of its file.
    """

    @wraps(command)
    def run(config_path: Path, name: str | None, *, as_json: bool, **parameters: Any) -> None:
        with reporting(as_json=as_json):
            settings, _ = load_settings(config_path)
            files = {
                each.name: each.shadow.state
                for each in settings.shadows
                if each.shadow and each.shadow.state
            }
            if name is None and len(files) == 1:
                (name,) = files
            if name not in files:
                advice = "none; add shadow: {sample: 5%, state: shadow.db} to a backend"
                names = ", ".join(files) or advice
                raise click.UsageError(f"name a backend with shadow.state; there are: {names}")
            contents = ShadowFile(files[name], name).read()
        users = Counter(each.result for each in contents.differing)
        differing = (each.fields for each in contents.differing if each.result == "differs")
        fields = Counter(chain.from_iterable(differing))
        record = {
            "backend": name,
            "since": format_time(contents.since),
            "written": format_time(contents.written),
            "problem": contents.problem,
            "days": contents.days,
            "users": contents.matches + users.total() - sum(users[each] for each in FAILED),
            **{each: users[each] for each in STORED},
            "match": contents.matches,
            "fields": dict(sorted(fields.items())),
            "totals": contents.totals,
        }
        command(record, contents, as_json=as_json, **parameters)

    backend = click.argument(
        "name", metavar="[BACKEND]", required=False, shell_complete=complete_backend
    )
    return backend(config_option(json_option(run)))


@migrate.command(epilog=examples("migrate status"))
@_on_file
def status(record: Record, _: Contents, *, as_json: bool) -> None:
    """Show the number of compared users, and the number with differences.

    The section "users" counts each user once, even after lookups by nickname and by card number.
    The section "lookups" counts each lookup.
    """
    show(record, _lines(record), as_json=as_json)


@migrate.command("report", epilog=examples("migrate report", "migrate report new --reveal"))
@_on_file
@click.option("--reveal", is_flag=True, help="Show nicknames and card numbers in full.")
def list_users(record: Record, contents: Contents, *, reveal: bool, as_json: bool) -> None:
    """List the users with differences, or without a reliable comparison.

    Without --reveal, users are shown as keyed hashes.
    """
    users, lines = list[Record](), list[str]()
    for each in contents.differing:
        compared = format_time(each.compared)
        users.append({**each._asdict(), "compared": compared})
        if not reveal:
            del users[-1]["queries"]
        shown = " ".join(each.queries) if reveal else each.user
        fields = f": {', '.join(each.fields)}" if each.fields else ""
        lines.append(f"{compared}  {each.result:10}  {shown}{fields}")
    show({"backend": record["backend"], "users": users}, lines or ["none"], as_json=as_json)


@migrate.command(epilog=examples("migrate check", "migrate check new --accept plan"))
@_on_file
@click.option(
    "--min-users",
    type=click.IntRange(min=1),
    metavar="N",
    default=1000,
    help="Report a blocker if fewer users than this were compared.",
)
@click.option(
    "--accept",
    "accepted",
    type=click.Choice(FIELDS),
    metavar="FIELD",
    multiple=True,
    help=f"Ignore differences in this field: {', '.join(FIELDS)}. May be repeated.",
)
def check(
    record: Record, contents: Contents, *, min_users: int, accepted: tuple[str, ...], as_json: bool
) -> None:
    """Report all blockers for a switch to the shadow.

    Blockers are missing users, extra users, users with a difference not named by --accept, and
    users whose last comparison failed. Other blockers are too few compared users, and a service
    that compares nothing or cannot write the file. Mismatches are compared again every minute.

    Exit codes: 0 no blocker; 1 blockers; 2 wrong use; 3 could not be determined.
    """
    compared = counted(record["users"], "user")
    blockers = []
    if record["users"] < min_users:
        blockers.append(f"{compared} compared since {record['since']}; --min-users is {min_users}")
    if abs(time.time() - contents.written) > _WRITTEN_WITHIN:
        text = "the service has not written the file since {written}: see tornado-idv health"
        blockers.append(text.format_map(record))
    if contents.problem is not None:
        blockers.append(f"the service compares nothing: {contents.problem}")
    others = Counter[str]()
    for each in contents.differing:
        left = [field for field in each.fields if field not in accepted]
        if each.result != "differs":
            others[f"{each.result} in {record['backend']}"] += 1
        elif left:
            others[f"with another {' and '.join(left)}"] += 1
    blockers += [f"{counted(count, 'user')} {text}" for text, count in others.items()]
    record = {"ok": not blockers, **record, "blockers": blockers}
    show(record, blockers or [f"no blocker: {compared} compared"], as_json=as_json)
    sys.exit(Exit.NO if blockers else Exit.DONE)


def _lines(record: Record) -> Iterator[str]:
    yield "{backend}: compared since {since}".format_map(record)
    yield f"users: {record['users']:,}, on {counted(record['days'], 'day')}"
    for each in STORED:
        yield f"  {each}: {record[each]:,}"
        if each == "differs":
            yield from (f"    {field}: {count:,}" for field, count in record["fields"].items())
    yield "lookups:"
    yield from (f"  {result}: {count:,}" for result, count in sorted(record["totals"].items()))
