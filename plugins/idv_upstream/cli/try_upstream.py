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
from typing import Any, NoReturn

import click
from multidict import CIMultiDict

from idv_upstream.cli.dry_run import DryRun, RecordingBackend, dry_run
from idv_upstream.cli.masking import Masker
from idv_upstream.options import UpstreamOptions
from idv_upstream.response.raw import MAX_BODY, Response
from tornado_idv import (
    CommandTools,
    Exit,
    InvalidFormat,
    LoadedConfig,
    StartError,
    printable,
)

_STATUS = re.compile(rb"HTTP/[0-9.]+ ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_MAX_SHOWN = 4096
_MAX_OF_OTHERS = 400
"""Characters of a response that is not of one user; it may hold the records of others."""


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
    head, *body = _END_OF_HEAD.split(content, maxsplit=1)
    lines = (line.partition(":") for line in head.decode("latin-1").splitlines()[1:])
    headers = CIMultiDict((name.strip(), value.strip()) for name, colon, value in lines if colon)
    return Response(int(status[1]), headers, b"".join(body))


def try_upstream(
    tools: CommandTools, path: Path, name: str, who: str, response: Path | None, *, as_json: bool
) -> NoReturn:
    """Look the user up, print each step, and exit with 0, 1 (not found) or 3 (not determined)."""
    with tools.exit_on_error(Exit.UNDETERMINED, as_json=as_json), _warnings_on_stderr():
        config = tools.read(path)
        known = {each.name: each for each in config.backends if isinstance(each, UpstreamOptions)}
        if name not in known:
            there_are = ", ".join(known) or "none"
            raise click.UsageError(f"no backend {name} of kind upstream; there are: {there_are}")
        options = known[name]
        try:
            query = config.parse(who)
        except InvalidFormat as error:
            raise click.UsageError(f"{error}; write @nick, a profile URL, or digits") from None
        saved = None if response is None else read_saved_response(response)
        if type(query) not in options.requests:
            raise click.UsageError(f"{name} does not serve this kind of query")
        backend = RecordingBackend(options, saved)
        run = asyncio.run(dry_run(backend, query, config.check_user))
    mask = Masker(config.reference_values | backend.transport.secrets())
    record = _as_record(run, _seconds_cached(run, options, config), mask)
    click.echo(dumps(record) if as_json else "\n".join(map(printable, _as_lines(record))))
    codes = {"found": Exit.DONE, "not known": Exit.NO, "undetermined": Exit.UNDETERMINED}
    sys.exit(codes[record["outcome"]])


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Without the exception, whose text may hold the fields of a request.
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


def _seconds_cached(run: DryRun, options: UpstreamOptions, config: LoadedConfig) -> float:
    user, limit, storable = run.result.user, run.result.ttl, run.result.storable
    if run.failure is not None or not storable:
        return 0.0
    ttl = options.negative_ttl if user is None else options.cache_ttl
    if ttl is None:
        ttl = config.negative_ttl if user is None else config.ttl
    return ttl if limit is None else min(ttl, limit)


def _as_record(run: DryRun, seconds_cached: float, mask: Masker) -> dict[str, Any]:
    """Return a record for scripts, in which secrets are masked."""
    request, response = run.request, run.response
    user = None if run.failure is not None else run.result.user
    outcome = "not known" if user is None else "found"
    return {
        "request": {
            "method": mask(request.method),
            "url": mask(request.url),
            "headers": mask(request.headers),
            "body": mask(_text(request.body)),
        },
        "response": response
        and {
            "status": response.status,
            "headers": mask(dict(response.headers)),
            "body": mask(_text(response.body)),
        },
        "expressions": [
            {
                "for": step.name,
                "expression": mask(step.expression),
                "result": mask(step.result),
                "error": mask(step.error or None),
                "missing": mask(list(step.missing)),
            }
            for step in run.steps
        ],
        "outcome": outcome if run.failure is None else "undetermined",
        "reason": None if run.failure is None else mask(run.failure.reason),
        "user": user
        and {
            "plan": mask(user.plan),
            "card_number": mask(user.card_number),
            "nickname": mask(f"@{user.nickname}"),
            "profile_url": mask(user.profile_url),
        },
        "cache_ttl_s": seconds_cached,
        "ttl_reduced": not run.result.storable or run.result.ttl == seconds_cached,
    }


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


def _as_lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the record as lines for a terminal."""
    request, response = record["request"], record["response"]
    yield f"request      {request['method']} {request['url']}"
    yield from _header_lines(request["headers"])
    yield from _body_lines(request["body"])
    if response is not None:
        yield f"response     {response['status']}"
        yield from _header_lines(response["headers"])
        steps = record["expressions"]
        is_of_one = any(step["for"] in ("plan", "card_number", "nickname") for step in steps)
        is_of_several = any(_is_of_several(step["result"]) for step in steps)
        most = _MAX_SHOWN if is_of_one and not is_of_several else _MAX_OF_OTHERS
        yield from _body_lines(response["body"], most)
    for step in record["expressions"]:
        result = step["error"] or dumps(step["result"], ensure_ascii=False)
        if _is_of_several(step["result"]):
            result = f"a list of {len(step['result'])}"
        elif step["missing"]:
            result += f" (missing: {', '.join(step['missing'])})"
        yield f"{step['for']:12} {step['expression']}  ->  {_cut(result)}"
    reason = record["reason"]
    yield f"outcome      {record['outcome']}" + (f": {reason}" if reason else "")
    for name, value in (record["user"] or {}).items():
        if value is not None:
            yield f"             {name}: {value}"
    if reason is None:
        yield f"cached       {_duration(record['cache_ttl_s'], reduced=record['ttl_reduced'])}"


def _duration(seconds: float, *, reduced: bool) -> str:
    duration = f"for at most {seconds:g} s" if seconds else "not at all"
    return f"{duration}, by its Cache-Control (see cache_control)" if reduced else duration


def _header_lines(headers: dict[str, str]) -> Iterator[str]:
    return (f"             {name}: {value}" for name, value in headers.items())


def _is_of_several(result: Any) -> bool:
    return isinstance(result, list) and len(result) > 1


def _body_lines(body: str | None, most: int = _MAX_SHOWN) -> Iterator[str]:
    return (f"             {line}" for line in _cut(body or "", most).splitlines())


def _cut(text: str, most: int = _MAX_OF_OTHERS) -> str:
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} in all)"
