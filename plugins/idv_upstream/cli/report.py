"""A dry run as a JSON record, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps
from typing import Any

from idv_upstream.cli.dry_run import DryRun
from idv_upstream.cli.masking import Masker
from tornado_idv import User

_MAX_SHOWN = 4096


def as_record(run: DryRun, seconds_cached: float, mask: Masker) -> dict[str, Any]:
    """Return a record for scripts, in which secrets are masked."""
    response = run.response
    return {
        "request": {
            "method": mask(run.method),
            "url": mask(run.url),
            "headers": mask(run.headers),
            "body": mask(_text(run.body)),
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
            }
            for step in run.steps
        ],
        "outcome": _outcome(run),
        "reason": None if run.failure is None else mask(run.failure.reason),
        "user": _user(run.user, mask) if run.failure is None else None,
        "cache_ttl_s": seconds_cached,
        "ttl_reduced": not run.storable or run.ttl == seconds_cached,
    }


def as_lines(record: dict[str, Any]) -> list[str]:
    """Return the record as lines that a terminal can show."""
    return [_printable(line) for line in _lines(record)]


def _outcome(run: DryRun) -> str:
    if run.failure is not None:
        return "undetermined"
    return "not known" if run.user is None else "found"


def _user(user: User | None, mask: Masker) -> dict[str, str | None] | None:
    if user is None:
        return None
    return {
        "plan": mask(user.plan),
        "card_number": mask(user.card_number),
        "nickname": mask(f"@{user.nickname}"),
        "profile_url": mask(user.profile_url),
    }


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


def _lines(record: dict[str, Any]) -> Iterator[str]:
    request, response = record["request"], record["response"]
    yield f"request      {request['method']} {request['url']}"
    yield from _headers(request["headers"])
    yield from _body(request["body"])
    if response is not None:
        yield f"response     {response['status']}"
        yield from _headers(response["headers"])
        yield from _body(response["body"])
    for step in record["expressions"]:
        result = step["error"] or dumps(step["result"], ensure_ascii=False)
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


def _headers(headers: dict[str, str]) -> Iterator[str]:
    return (f"             {name}: {value}" for name, value in headers.items())


def _body(body: str | None) -> Iterator[str]:
    return (f"             {line}" for line in _cut(body or "").splitlines())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ... ({len(text)} in all)"


def _printable(line: str) -> str:
    """Escape what a terminal would interpret, or cannot encode."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return shown.encode("utf-8", "backslashreplace").decode()
