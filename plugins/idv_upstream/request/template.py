"""Templates of requests, compiled once for a kind of query and rendered for each query."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from idv_upstream.request.encoding import Parts, has_dot_segment, is_header_value, render
from tornado_idv import Broken, strict_json


class Request(Struct, frozen=True):
    """A request, ready to send.

    ``url`` is an encoded absolute URL, or a path below ``base_url``. A ``repeatable`` request may
    be sent twice without harm.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool

    def __repr__(self) -> str:
        """Return a text without values, since values may include the query and a credential."""
        return "Request()"


@dataclass(frozen=True, slots=True, repr=False)
class RequestTemplate:
    """A compiled request with placeholders."""

    method: str
    url: Parts
    headers: Mapping[str, Parts]
    body: Parts | None
    repeatable: bool

    def render(self, value: str) -> Request:
        """Return the request with its placeholders replaced by a value.

        Raises `Broken` if the value is invalid in its position. The error does not count against
        the circuit breaker, since the upstream has not failed.
        """
        if not value or not strict_json.is_unicode(value):
            raise Broken("the query cannot be sent", counts_against_breaker=False)
        url = render(self.url, value)
        if has_dot_segment(url.partition("?")[0]):
            raise Broken("the query cannot be part of a path", counts_against_breaker=False)
        headers = {name: render(header, value) for name, header in self.headers.items()}
        if not all(map(is_header_value, headers.values())):
            raise Broken("the query cannot be part of a header", counts_against_breaker=False)
        body = None if self.body is None else render(self.body, value).encode()
        return Request(self.method, url, headers, body, self.repeatable)
