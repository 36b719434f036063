"""A client that compares each response with the OpenAPI document."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from openapi_core import OpenAPI
from openapi_core.testing import MockRequest, MockResponse

from support.processes.service import Client, Reply

_DOCUMENT = Path(__file__).parents[3] / "openapi.json"
_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[^ ?]*) HTTP/1\.1\r\n")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ResponseChecker:
    """Compares responses with the document; of equal ones the first, since it takes 5 ms."""

    def __init__(self) -> None:
        document = json.loads(_DOCUMENT.read_text(encoding="utf-8"))
        self._api = OpenAPI.from_dict(document)
        self._paths = document["paths"]
        self._checked: set[tuple[str, str, int, bytes, frozenset[tuple[str, str]]]] = set()

    def check(self, request: bytes, replies: Iterable[Reply]) -> None:
        """Raise an error for a reply that the document does not have for this request."""
        line = _REQUEST_LINE.match(request)
        if line is None:
            return
        method, path = line[1].decode().lower(), line[2].decode("latin-1")
        if method not in self._paths.get(path, {}):
            return
        for reply in replies:
            headers = {**reply.headers}
            if _REQUEST_ID.fullmatch(headers.get("x-request-id", "")):
                headers["x-request-id"] = "a"  # the only difference of most responses
            seen = (method, path, reply.status, reply.body, frozenset(headers.items()))
            if reply.status >= 200 and seen not in self._checked:
                media_type = headers.get("content-type", "")
                response = MockResponse(reply.body, reply.status, headers, media_type)
                self._api.validate_response(MockRequest("http://x", method, path), response)
                self._checked.add(seen)


class CheckedClient(Client):
    """Sends requests as `Client`, and checks the responses."""

    def __init__(self, port: int, checker: ResponseChecker) -> None:
        super().__init__(port)
        self._checker = checker

    def raw(self, data: bytes, expect: int = 1) -> list[Reply]:
        replies = super().raw(data, expect)
        self._checker.check(data, replies)
        return replies
