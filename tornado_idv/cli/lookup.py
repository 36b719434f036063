"""``tornado-idv lookup``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
import pluggy

from tornado_idv.cli.common import Exit, config_option, json_option, load_settings, told_as
from tornado_idv.config.settings import Settings
from tornado_idv.errors import CouldNotTell, InvalidFormat
from tornado_idv.guard import Asked
from tornado_idv.model import Query
from tornado_idv.server.logs import keep_out_secrets
from tornado_idv.server.service import open_directory


@click.command()
@click.argument("who", metavar="@NICK|URL|DIGITS")
@config_option
@click.option("--explain", is_flag=True, help="Show which backend said what, in how many ms.")
@json_option
def lookup(who: str, config_path: Path, explain: bool, as_json: bool) -> None:  # noqa: FBT001
    """Ask the configured backends who this is.

    They are asked directly, without the HTTP service and its cache.
    """
    keep_out_secrets()
    with told_as(Exit.COULD_NOT_TELL):
        settings, manager = load_settings(config_path)
        query = _parse(settings, who)
        asked: list[Asked] = []
        code, record = asyncio.run(_find(settings, manager, query, asked))
    if explain:
        record["asked"] = [
            {"backend": each.backend, "said": each.said, "ms": round(each.seconds * 1000, 2)}
            for each in asked
        ]
    click.echo(json.dumps(record, ensure_ascii=False) if as_json else _as_text(record))
    sys.exit(code)


def _parse(settings: Settings, who: str) -> Query:
    try:
        return settings.valid_forms().parse_any(who)
    except InvalidFormat as error:
        sites = ", ".join(f"{site}/m/nick" for site in settings.profile_sites)
        raise click.UsageError(f"{error}; write @nick, {sites}, or a card's digits") from None


async def _find(
    settings: Settings, manager: pluggy.PluginManager, query: Query, asked: list[Asked]
) -> tuple[Exit, dict[str, Any]]:
    async with open_directory(settings, manager, asked.append) as directory:
        try:
            answer = await directory.find(query)
        except CouldNotTell as error:
            return Exit.COULD_NOT_TELL, {"status": "could_not_tell", "reason": str(error)}
    record = json.loads(answer.body)
    if answer.found:
        return Exit.DONE, {**record, "backend": answer.backend}
    return Exit.NO, record


def _as_text(record: dict[str, Any]) -> str:
    lines = [f"{name + ':':14}{text}" for name, text in record.items() if name != "asked"]
    lines += [
        f"  asked {each['backend']}: {each['said']} ({each['ms']} ms)"
        for each in record.get("asked", ())
    ]
    return "\n".join(lines)
