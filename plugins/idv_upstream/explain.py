"""Records the steps of one lookup, for the operator.

They hold whole responses, and of the requests all but what is named like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from json import dumps
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response
from idv_upstream.response.reader import ResponseReader
from idv_upstream.transport.credentials import MASK
from idv_upstream.transport.sender import Sender
from tornado_idv import LookupFailed, Query, Step, strict_json

_SECRET_NAME = re.compile("auth|key|token|secret|cookie|passw|pwd", re.IGNORECASE)
_SHOWN = 4096
_SHOWN_OF_OTHERS = 400
"""Characters of a response that is not of one user; it may hold the records of others."""


class Recorder:
    """Sends the requests of one lookup, and records them and their responses."""

    def __init__(self, sender: Sender, reader: ResponseReader) -> None:
        self._sender, self._reader = sender, reader
        self._exchanges: list[tuple[Request, Response | None]] = []

    async def send(self, request: Request, *, on_new: bool = False) -> Response:
        """Send a request; also the body of a response is read that a lookup does not need."""
        shown = _masked(self._sender.shown(request))
        self._exchanges.append((shown, None))
        response = await self._sender.send(
            request, lambda status: self._reader.wants_body(status) or None, on_new=on_new
        )
        self._exchanges[-1] = shown, response
        return response

    def steps(self, query: Query, *, in_two_steps: bool) -> Iterator[Step]:
        """Yield each request, its response, and the results of the expressions on that."""
        for index, (request, response) in enumerate(self._exchanges):
            yield Step("request", f"{request.method} {request.url}")
            yield Step("request headers", request.headers)
            if request.body is not None:
                yield Step("request body", request.body.decode())
            if response is None:
                continue
            evaluated: list[Step] = []
            with suppress(LookupFailed):
                if in_two_steps and index % 2 == 0:
                    evaluated.append(Step("id", self._reader.read_id(query, response)))
                else:
                    evaluated += self._reader.explain(query, response)
            yield Step("response", response.status)
            yield Step("response headers", dict(response.headers))
            shown = _SHOWN if _is_of_one_user(evaluated) else _SHOWN_OF_OTHERS
            yield Step("response body", response.body.decode("utf-8", "replace"), shown=shown)
            yield from evaluated


def _is_of_one_user(evaluated: list[Step]) -> bool:
    is_mapped = any(each.name in ("plan", "card_number", "nickname") for each in evaluated)
    return is_mapped and not any(
        isinstance(each.result, list) and len(each.result) > 1 for each in evaluated
    )


def _masked(request: Request) -> Request:
    """Mask the values in a request that are named like a secret."""
    path, mark, query = request.url.partition("?")
    headers = {name: MASK if _is_secret(name) else each for name, each in request.headers.items()}
    body = request.body
    if body is not None:
        try:
            body = dumps(_mask_members(strict_json.loads(body))).encode()
        except ValueError:
            body = _mask_pairs(body.decode()).encode()
    return replace(request, url=path + mark + _mask_pairs(query), headers=headers, body=body)


def _mask_pairs(pairs: str) -> str:
    """Mask in a query or a form."""
    return "&".join(
        f"{name}={MASK}" if equals and _is_secret(name) else name + equals + value
        for name, equals, value in (pair.partition("=") for pair in pairs.split("&"))
    )


def _mask_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _is_secret(name) else _mask_members(member)
            for name, member in value.items()
        }
    return [_mask_members(item) for item in value] if isinstance(value, list) else value


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(unquote(name)) is not None
