"""The request for one kind of query, compiled once and rendered for each query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from idv_upstream.request.encoding import Compiled, has_dot_segment, is_header_value
from tornado_idv import Broken, ByNickname, Query, strict_json


class Request(NamedTuple):
    """One request, ready to be sent.

    ``url`` is encoded; it is absolute, or a path below an endpoint. A ``repeatable``
    request may be sent twice without harm.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool

    def __repr__(self) -> str:
        """Without values: they include the query, and may include a credential."""
        return "Request()"


@dataclass(frozen=True, slots=True, repr=False)
class RequestTemplate:
    """The compiled parts of a request."""

    method: str
    path: Compiled
    query: Compiled | None
    headers: Mapping[str, Compiled]
    """Those that depend on the query."""
    constant_headers: Mapping[str, str]
    body: Compiled | None
    repeatable: bool

    @property
    def is_constant(self) -> bool:
        """Return whether the request is the same for all queries."""
        parts = (self.path, self.query, self.body, *self.headers.values())
        return not any(part.slots for part in parts if part is not None)

    def render(self, query: Query) -> Request:
        """Return the request for ``query``."""
        return self.render_value(
            query.nickname if isinstance(query, ByNickname) else query.card_number
        )

    def render_value(self, value: str) -> Request:
        """Return the request for a value in the place of its placeholders.

        Raises `Broken` if the value cannot stand where its placeholder does. That is not
        the fault of the upstream, so it does not count against the circuit breaker.
        """
        if not value or not strict_json.is_unicode(value):
            raise Broken("the query cannot be sent", counts_against_breaker=False)
        url = self.path.render(value)
        if has_dot_segment(url):
            raise Broken("the query cannot be part of a path", counts_against_breaker=False)
        if self.query is not None:
            url += self.query.render(value)
        return Request(
            self.method,
            url,
            self._render_headers(value) if self.headers else self.constant_headers,
            None if self.body is None else self.body.render(value).encode(),
            self.repeatable,
        )

    def _render_headers(self, value: str) -> Mapping[str, str]:
        rendered = {name: header.render(value) for name, header in self.headers.items()}
        if not all(map(is_header_value, rendered.values())):
            raise Broken("the query cannot be part of a header", counts_against_breaker=False)
        return {**self.constant_headers, **rendered}
