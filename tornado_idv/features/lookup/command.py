"""The command ``tornado-idv lookup``."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import pluggy

from tornado_idv.cli.backends import backend_named, load_settings
from tornado_idv.cli.common import (
    Record,
    backend_option,
    config_option,
    examples,
    exit_on_error,
    failure,
    json_option,
    mute_own_logger,
    print_json,
    show,
)
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.references import Resolved
from tornado_idv.config.settings import Settings
from tornado_idv.errors import InvalidFormat, LookupFailed
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.kit.masking import Masker
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.lookup.chain import Explanation
from tornado_idv.model import Query, Step
from tornado_idv.service.directories import open_directory

_SHOWN = 400
_dumps = partial(json.dumps, ensure_ascii=False)
_MASKED = {"reason", "plan", "card_number", "nickname", "profile_url"}


@click.command(
    epilog=examples(
        "lookup @alice", "lookup 4000123412341234 --explain", "lookup @alice --steps --backend crm"
    )
)
@click.argument("who", metavar="@NICK|URL|DIGITS")
@config_option
@click.option(
    "--explain", is_flag=True, help="Show the result of each backend, and its time in ms."
)
@click.option(
    "--steps", is_flag=True, help="Also show requests, responses and parsed values of each backend."
)
@backend_option("--backend", "Open and query only this backend.", required=False)
@json_option
def lookup(
    who: str, config_path: Path, name: str | None, *, explain: bool, steps: bool, as_json: bool
) -> None:
    """Look a user up in the configured backends.

    The command queries the backends directly, without the HTTP service and its cache.

    With --steps, secrets are masked, but user data is not.
    """
    keep_out_secrets()
    with exit_on_error(
        Exit.UNDETERMINED,
        as_json=as_json,
        record=lambda error: {"status": "undetermined", "reason": str(error), **failure(error)},
    ):
        settings, manager = load_settings(config_path)
        if name is not None:
            chosen = backend_named(settings.backends, name).model_copy(update={"shadow": None})
            settings = settings.model_copy(update={"backends": (chosen,)})
        try:
            query = settings.make_identifiers().parse_any(who)
        except InvalidFormat as error:
            message = f"{error}; {_advice(settings, who)}"
            if not as_json:
                raise click.UsageError(message) from None
            print_json({"status": "error", "code": "invalid_format", "message": message})
            sys.exit(Exit.WRONG_USE)
        with mute_own_logger():
            record, explanation, recorded = asyncio.run(
                _find(settings, manager, query, name, with_steps=steps)
            )
        mask = Masker(_secrets(config_path) if steps else ())
    record |= {key: mask(text) for key, text in record.items() if key in _MASKED}
    seconds = record.pop("cache_ttl_s", None)
    lines = [f"{key + ':':14}{text}" for key, text in record.items()]
    if explain or steps:
        if seconds is not None:
            record["cache_ttl_s"] = seconds
            lines.append(f"  cached {f'for at most {seconds:g} s' if seconds else 'not at all'}")
        record["backends"] = []
        for call in explanation.calls:
            ms = round(call.seconds * 1000, 2)
            each: Record = {"backend": call.backend, "outcome": mask(call.outcome), "ms": ms}
            lines.append(f"  asked {call.backend}: {each['outcome']} ({ms} ms)")
            if steps:
                shown = [step.masked(mask) for step in recorded.get(call.backend, ())]
                each["steps"] = [*map(_step_record, shown)]
                lines += (line for step in shown for line in _step_lines(step))
            record["backends"].append(each)
    show(record, lines, as_json=as_json)
    codes = {"found": Exit.DONE, "not_found": Exit.NO, "undetermined": Exit.UNDETERMINED}
    sys.exit(codes[explanation.result])


def _secrets(path: Path) -> Collection[str]:
    """Return the values of all ``${…}`` references in the configuration. Most are secrets."""
    return Resolved(ConfigFile.read(path).tree(), path, os.environ).values


def _advice(settings: Settings, who: str) -> str:
    """Return advice for an invalid identifier: the valid forms, and maybe a suggestion."""
    sites = ", ".join(f"{site}/m/nick" for site in settings.profile_sites)
    advice = f"write @nick, {sites}, or a card's digits"
    if re.fullmatch(r"[0-9][0-9 .-]*", who):
        return f"{advice}, only digits: no spaces, dashes or dots"
    with suppress(InvalidFormat):
        settings.make_identifiers().parse_nickname(who)
        return f"{advice}; did you mean @{who}?"
    return advice


async def _find(
    settings: Settings,
    manager: pluggy.PluginManager,
    query: Query,
    name: str | None,
    *,
    with_steps: bool,
) -> tuple[Record, Explanation, Mapping[str, Sequence[Step]]]:
    """Return the result of a lookup, its explanation, and the steps of each backend."""
    async with open_directory(settings, manager) as directory:
        guards = directory.guards
        if name is not None and not guards[0].serves(query):
            raise click.UsageError(f"{name} does not serve this kind of query")
        steps = {each.name: each.record_steps() for each in guards} if with_steps else {}
        explanation = await directory.explain(query)
    end = explanation.end
    if isinstance(end, LookupFailed):
        return {"status": "undetermined", "reason": str(end)}, explanation, steps
    record: Record = json.loads(end.body)
    if end.found:
        record["backend"] = end.backend
    record["cache_ttl_s"] = directory.cache.ttl(end) if end.storable else 0.0
    return record, explanation, steps


def _step_record(step: Step) -> Record:
    texts = {"expression": step.expression, "note": step.note}
    given = {name: text for name, text in texts.items() if text}
    return {"step": step.name, "result": step.result, **given}


def _step_lines(step: Step) -> Iterator[str]:
    result = step.result
    if step.expression:
        is_several = isinstance(result, list) and len(result) > 1
        shown = f"a list of {len(result)}" if is_several else _cut(_dumps(result), _SHOWN)
        lines = [f"{step.expression}  ->  {shown}"]
    elif isinstance(result, Mapping):
        lines = [f"{name}: {_text(value)}" for name, value in result.items()]
    else:
        lines = _cut(_text(result), step.shown).splitlines()
    lines = lines or [""]
    if step.note:
        lines[-1] += f" ({step.note})"
    for name, line in zip_longest([step.name], lines, fillvalue=""):
        yield f"    {name:<18}{line}".rstrip()


def _text(result: Any) -> str:
    return result if isinstance(result, str) else _dumps(result)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} in all)"
