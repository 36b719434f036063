"""Looks one user up in an upstream, and prints every step: ``tornado-idv upstream try``."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import NoReturn

import click
from multidict import CIMultiDict

from idv_upstream.backend import UpstreamBackend
from idv_upstream.cli.dry_run import DryRun, dry_run
from idv_upstream.cli.masking import Masker
from idv_upstream.cli.report import as_lines, as_record
from idv_upstream.options import UpstreamOptions
from idv_upstream.response.raw import MAX_BODY, Response
from tornado_idv import CommandTools, Exit, InvalidFormat, LoadedConfig, Query, StartError

_STATUS = re.compile(rb"HTTP/[0-9.]+ ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


def read_saved_response(path: Path) -> Response:
    """Return the response in a file: a body alone, or the output of ``curl -i``.

    A body alone is taken for JSON with status 200. Raises `StartError` for a file that
    cannot be read or is too long.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > 2 * MAX_BODY:
        raise StartError(f"{path}: longer than any response that is read ({MAX_BODY} bytes)")
    status = _STATUS.match(content)
    if status is None:
        return Response(200, CIMultiDict({"Content-Type": "application/json"}), content)
    head, body = content[status.end() :], b""
    end = _END_OF_HEAD.search(content)
    if end is not None:
        head, body = content[status.end() : end.start()], content[end.end() :]
    return Response(int(status[1]), _headers(head), body)


def _headers(head: bytes) -> CIMultiDict[str]:
    lines = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return CIMultiDict((name.strip(), value.strip()) for name, colon, value in lines if colon)


def try_upstream(
    tools: CommandTools, path: Path, name: str, who: str, response: Path | None, *, as_json: bool
) -> NoReturn:
    """Look the user up, print each step, and exit with 0, 1 (not found) or 3 (not determined)."""
    with tools.exit_on_error(Exit.UNDETERMINED, as_json=as_json), _warnings_on_stderr():
        config = tools.read(path)
        options, query = _options(config, name), _query(config, who)
        saved = None if response is None else read_saved_response(response)
        run = asyncio.run(_run(options, query, config, saved))
    mask = Masker(config.reference_values | run.secrets)
    record = as_record(run, _seconds_cached(run, options, config), mask)
    click.echo(dumps(record) if as_json else "\n".join(as_lines(record)))
    sys.exit(_exit_code(run))


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"warning: {record.getMessage()}", err=True)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings that are logged within, and nothing else of the log."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Stderr(logging.WARNING)]
    try:
        yield
    finally:
        root.handlers = before


async def _run(
    options: UpstreamOptions, query: Query, config: LoadedConfig, saved: Response | None
) -> DryRun:
    backend = UpstreamBackend(options)
    if type(query) not in backend.serves:
        raise click.UsageError(f"{options.name} does not serve this kind of query")
    await backend.open()
    try:
        return await dry_run(backend, query, config.parse, saved)
    finally:
        await backend.close()


def _options(config: LoadedConfig, name: str) -> UpstreamOptions:
    upstreams = {each.name: each for each in config.backends if isinstance(each, UpstreamOptions)}
    if name not in upstreams:
        known = ", ".join(upstreams) or "none"
        raise click.UsageError(f"no backend {name} of kind upstream; there are: {known}")
    return upstreams[name]


def _query(config: LoadedConfig, who: str) -> Query:
    try:
        return config.parse(who)
    except InvalidFormat as error:
        raise click.UsageError(f"{error}; write @nick, a profile URL, or digits") from None


def _seconds_cached(run: DryRun, options: UpstreamOptions, config: LoadedConfig) -> float:
    if run.failure is not None or not run.storable:
        return 0.0
    of_backend, default = options.cache_ttl, config.ttl
    if run.user is None:
        of_backend, default = options.negative_ttl, config.negative_ttl
    ttl = default if of_backend is None else of_backend
    return ttl if run.ttl is None else min(ttl, run.ttl)


def _exit_code(run: DryRun) -> Exit:
    if run.failure is not None:
        return Exit.UNDETERMINED
    return Exit.NO if run.user is None else Exit.DONE
