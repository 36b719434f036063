"""Looks one user up in an LDAP directory, and prints every step: ``tornado-idv ldap try``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from idv_ldap.connections import Connections
from idv_ldap.entries import EntryMapper
from idv_ldap.options import LdapOptions
from idv_ldap.search import Search
from idv_ldap.server import Attributes
from tornado_idv import (
    CommandTools,
    Exit,
    InvalidFormat,
    LoadedConfig,
    LookupFailed,
    Query,
    Unavailable,
    printable,
)

Step = tuple[str, str]


def try_ldap(tools: CommandTools, path: Path, name: str, who: str, *, as_json: bool) -> NoReturn:
    """Look the user up, print each step, and exit with 0, 1 (not found) or 3 (undetermined)."""
    config = tools.read(path)
    known = {each.name: each for each in config.backends if isinstance(each, LdapOptions)}
    if name not in known:
        there_are = ", ".join(known) or "none"
        raise click.UsageError(f"no backend {name} of kind ldap; there are: {there_are}")
    try:
        query = config.parse(who)
    except InvalidFormat as error:
        raise click.UsageError(f"{error}; write @nick, a profile URL, or digits") from None
    if type(query) not in known[name].searches:
        raise click.UsageError(f"{name} does not serve this kind of query")
    steps, result = asyncio.run(_run(known[name], query, config))
    if as_json:
        lines = [{"step": step, "result": text} for step, text in steps]
        click.echo(json.dumps({"result": result, "steps": lines}))
    else:
        for step, text in steps:
            click.echo(printable(f"{step + ':':<16} {text}"))
        click.echo({"found": "Found.", "not_found": "Not found."}.get(result, "Undetermined."))
    codes = {"found": Exit.DONE, "not_found": Exit.NO}
    sys.exit(codes.get(result, Exit.UNDETERMINED))


async def _run(options: LdapOptions, query: Query, config: LoadedConfig) -> tuple[list[Step], str]:
    mapper = EntryMapper(options)
    search = Search(options.searches[type(query)], mapper.attributes)
    value = query.text.removeprefix("@")
    text = f"{search.template.render(value)} below {options.base_dn} ({options.scope})"
    steps: list[Step] = []
    try:
        connection = await Connections(options, lambda: None).connect(steps)
        steps.append(("search", text))
        async with asyncio.timeout(options.timeout):
            entry = await search.find(connection, value)
        connection.lose(Unavailable("done"))
        if entry is None:
            return steps, "not_found"
        user = mapper.user(_explain(entry, mapper, steps))
        if user is None:
            steps.append(("not_known_when", "is true"))
            return steps, "not_found"
        config.check_user(user, query)
    except TimeoutError:
        steps.append(("failed", f"no response within {options.timeout:g} s"))
    except LookupFailed as error:
        steps.append(("failed", error.reason))
    else:
        return steps, "found"
    return steps, "undetermined"


def _explain(entry: Attributes, mapper: EntryMapper, steps: list[Step]) -> Attributes:
    """Add the attributes of an entry and the result of each expression to the steps."""
    record = mapper.record(entry)
    steps.append(("entry", _shown(record)))
    for field in mapper.fields.values():
        if field.expression is not None:
            value, text = field.expression.evaluate(record), field.text(record)
            mapped = "" if value == text else f"  ->  {_shown(text)}"
            steps.append((field.name, f"{_shown(value)}{mapped}"))
    return entry


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
