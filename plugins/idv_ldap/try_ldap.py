"""Looks one user up in an LDAP directory, and prints every step: ``tornado-idv ldap try``."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from idv_ldap.connection import SCOPES, Attributes, Connection, connect
from idv_ldap.entries import EntryMapper, FilterTemplate
from idv_ldap.library import to_lookup_failed
from idv_ldap.options import LdapOptions
from idv_ldap.refusals import Refused
from tornado_idv import (
    Broken,
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
    mapper, template = EntryMapper(options), FilterTemplate(options.searches[type(query)])
    filter_ = template.render(query.text.removeprefix("@"))
    steps: list[Step] = []
    try:
        entry = await _search(options, filter_, mapper.attributes, steps)
        user = None if entry is None else mapper.user(_explain(entry, mapper, steps))
        if user is not None:
            config.check_user(user, query)
    except LookupFailed as error:
        steps.append(("failed", error.reason))
        return steps, "undetermined"
    if entry is not None and user is None:
        steps.append(("not_known_when", "is true"))
    return steps, "not_found" if user is None else "found"


async def _search(
    options: LdapOptions, filter_: str, attributes: list[str], steps: list[Step]
) -> Attributes | None:
    uri, handle = await asyncio.to_thread(_connect, options, steps)
    connection = Connection(handle, uri)
    steps.append(("search", f"{filter_} below {options.base_dn} ({options.scope})"))
    try:
        async with asyncio.timeout(options.timeout):
            scope = SCOPES[options.scope]
            found = await connection.search(options.base_dn, scope, filter_, attributes)
    except TimeoutError:
        raise Unavailable(f"no response within {options.timeout:g} s") from None
    finally:
        connection.lose(Unavailable("done"))
    if len(found) > 1:
        raise Broken("more than one user for one query")
    return found[0] if found else None


def _connect(options: LdapOptions, steps: list[Step]) -> tuple[str, Any]:
    """Return the first server that responds, and the connection to it."""
    for uri in options.uris:
        try:
            handle = connect(options, uri)
        except Exception as error:  # noqa: BLE001 - each is mapped
            failure = to_lookup_failed(error)
            if isinstance(failure, Refused):
                raise failure from None
            steps += [(uri, failure.reason), *_explain_tls(options, uri)]
        else:
            steps.append((uri, "connected and bound"))
            return uri, handle
    raise failure


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


def _explain_tls(options: LdapOptions, uri: str) -> Iterator[Step]:
    """Explain a certificate by a handshake of our own: libldap has no reason for a failure."""
    parts: Any = urlsplit(uri)
    if parts.scheme != "ldaps":
        return
    try:
        context = ssl.create_default_context(cafile=options.tls.ca_file)
        address = parts.hostname, parts.port
        with (
            socket.create_connection(address, timeout=options.connect_timeout) as sock,
            context.wrap_socket(sock, server_hostname=parts.hostname),
        ):
            yield "TLS", "the certificate is trusted"
    except ssl.SSLCertVerificationError as error:
        yield "TLS", f"the certificate is refused: {error.verify_message}"
    except OSError as error:
        yield "TLS", f"the handshake failed: {error.strerror or type(error).__name__}"
