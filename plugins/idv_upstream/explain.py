"""A recorder of the steps of one lookup, for ``tornado-idv lookup --steps``.

The steps contain complete requests and responses. If the name of a value looks like the name of a
secret, the value is masked.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from json import dumps
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response
from idv_upstream.transport.client import WantsBody
from idv_upstream.transport.sender import Sender
from tornado_idv import Masker, Step, strict_json

_SECRET_NAME = re.compile("auth|key|token|secret|cookie|passw|pwd", re.IGNORECASE)
_SHOWN = 4096
_SHOWN_OF_OTHERS = 400
"""Maximum characters to show of a response that may contain records of other users."""


class Recorder(Sender):
    """A sender that records requests and responses as steps."""

    def __init__(self, sender: Sender, steps: list[Step]) -> None:
        vars(self).update(vars(sender))
        self._steps = steps

    async def send(self, request: Request, wants_body: WantsBody, *, on_new: bool) -> Response:
        """Send a request, and record it with its response. Always try to read the body."""
        shown = self.shown(request)
        path, mark, query = shown.url.partition("?")
        self._steps.append(Step("request", f"{shown.method} {path}{mark}{_mask_pairs(query)}"))
        self._steps.append(Step("request headers", _mask(dict(shown.headers))))
        if shown.body is not None:
            self._steps.append(Step("request body", _mask_body(shown.body, _mask_pairs)))
        response = await super().send(
            request, lambda status: wants_body(status) or None, on_new=on_new
        )
        self._steps.append(Step("response", response.status))
        self._steps.append(Step("response headers", _mask(dict(response.headers))))
        self._steps.append(Step("response body", _mask_body(response.body)))
        return response


def for_output(steps: list[Step], secrets: Iterable[str]) -> Iterator[Step]:
    """Yield the steps without secrets. Limit the characters to show of each response body."""
    mask = Masker(secrets)
    for index, step in enumerate(steps, 1):
        limit = step.shown
        if step.name == "response body":
            evaluated = list(takewhile(lambda each: each.name != "request", steps[index:]))
            results = [each.result for each in evaluated]
            is_list = any(isinstance(each, list) and len(each) > 1 for each in results)
            is_user = {"plan", "card_number", "nickname"} & {each.name for each in evaluated}
            limit = _SHOWN if is_user and not is_list else _SHOWN_OF_OTHERS
        yield replace(step, shown=limit).masked(mask)


def _mask_pairs(pairs: str) -> str:
    """Return a query string or form with its secrets masked."""
    parts = [pair.partition("=") for pair in pairs.split("&")]
    return "&".join(name + equals + _mask(value, name) for name, equals, value in parts)


def _mask_body(body: bytes, mask_other: Callable[[str], str] = str) -> str:
    """Return a JSON document with its secrets masked, or the result of ``mask_other``."""
    text = body.decode("utf-8", "replace")
    try:
        document = strict_json.loads(body)
    except ValueError:
        return mask_other(text)
    masked = _mask(document)
    return text if masked == document else dumps(masked)


def _mask(value: Any, name: str = "") -> Any:
    """Return a JSON value in which members with secret-like names are masked, at any depth."""
    if value and _SECRET_NAME.search(unquote(name)):
        return Masker.MASK
    if isinstance(value, dict):
        return {each: _mask(member, each) for each, member in value.items()}
    return [_mask(item) for item in value] if isinstance(value, list) else value
