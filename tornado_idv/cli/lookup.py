"""``tornado-idv lookup``."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pluggy

from tornado_idv.cli.common import (
    Record,
    config_option,
    exit_on_error,
    failure,
    json_option,
    mute_own_logger,
    print_json,
    show,
)
from tornado_idv.cli.load_config import load_settings
from tornado_idv.config.settings import Settings
from tornado_idv.errors import IdvError, InvalidFormat, LookupFailed
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.lookup.guard import BackendCall
from tornado_idv.model import Query
from tornado_idv.service.directories import open_directory


@click.command()
@click.argument("who", metavar="@NICK|URL|DIGITS")
@config_option
@click.option(
    "--explain", is_flag=True, help="Show the result of each backend, and its time in ms."
)
@json_option
def lookup(who: str, config_path: Path, explain: bool, as_json: bool) -> None:  # noqa: FBT001
    """Look a user up in the configured backends.

    They are queried directly, without the HTTP service and its cache.
    """
    keep_out_secrets()
    calls: list[BackendCall] = []
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json, record=_failure_record):
        settings, manager = load_settings(config_path)
        try:
            query = settings.make_identifiers().parse_any(who)
        except InvalidFormat as error:
            message = f"{error}; {_advice(settings, who)}"
            if not as_json:
                raise click.UsageError(message) from None
            print_json({"status": "error", "code": "invalid_format", "message": message})
            sys.exit(Exit.WRONG_USE)
        with mute_own_logger():
            code, record = asyncio.run(_find(settings, manager, query, calls))
    if explain:
        record["asked"] = [
            {"backend": each.backend, "said": each.outcome, "ms": round(each.seconds * 1000, 2)}
            for each in calls
        ]
    else:
        record.pop("answer", None)
    show(record, _lines(record), as_json=as_json)
    sys.exit(code)


def _failure_record(error: IdvError) -> Record:
    return {"status": "undetermined", "reason": str(error), **failure(error)}


def _advice(settings: Settings, who: str) -> str:
    """The valid forms, with a suggestion if one is likely."""
    sites = ", ".join(f"{site}/m/nick" for site in settings.profile_sites)
    advice = f"write @nick, {sites}, or a card's digits"
    if re.fullmatch(r"[0-9][0-9 .-]*", who):
        return f"{advice}, only digits: no spaces, dashes or dots"
    with suppress(InvalidFormat):
        settings.make_identifiers().parse_nickname(who)
        return f"{advice}; did you mean @{who}?"
    return advice


async def _find(
    settings: Settings, manager: pluggy.PluginManager, query: Query, calls: list[BackendCall]
) -> tuple[Exit, Record]:
    async with open_directory(settings, manager, calls.append) as directory:
        try:
            answer = await directory.find(query)
        except LookupFailed as error:
            reason = {"status": "undetermined", "reason": str(error), "answer": None}
            return Exit.UNDETERMINED, reason
    record = json.loads(answer.body)
    if answer.found:
        record["backend"] = answer.backend
    record["answer"] = {
        "age_s": round(directory.cache.timer() - answer.since, 3),
        "stale": answer.stale,
        "coalesced": answer.coalesced,
    }
    return (Exit.DONE if answer.found else Exit.NO), record


def _lines(record: Record) -> Iterator[str]:
    for name, text in record.items():
        if name not in ("answer", "asked"):
            yield f"{name + ':':14}{text}"
    if how := record.get("answer"):
        yield f"  {'stale' if how['stale'] else 'fresh'}, {how['age_s']:g} s old"
    for each in record.get("asked", ()):
        yield f"  asked {each['backend']}: {each['said']} ({each['ms']} ms)"
