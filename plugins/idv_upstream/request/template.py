"""The request for one kind of query, compiled once and rendered for each query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from idv_upstream.request.encoding import has_dot_segment, is_header_value
from idv_upstream.request.templates import Compiled
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
    """The compiled parts of a request; ``profile_site`` is the prefix of the first site."""

    method: str
    path: Compiled
    query: Compiled | None
    headers: Mapping[str, Compiled]
    """Those that depend on the query."""
    constant_headers: Mapping[str, str]
    body: Compiled | None
    repeatable: bool
    profile_site: str

    @property
    def names(self) -> frozenset[str]:
        """The names of the placeholders that are used."""
        parts = (self.path, self.query, self.body, *self.headers.values())
        return frozenset[str]().union(*(part.names for part in parts if part is not None))

    def render(self, query: Query) -> Request:
        """Return the request for ``query``.

        Raises `Broken` if the value cannot stand where its placeholder does. That is not
        the fault of the upstream, so it does not count against the circuit breaker.
        """
        values = self._values(query)
        url = self.path.render(values)
        if has_dot_segment(url):
            raise Broken("the query cannot be part of a path", counts_against_breaker=False)
        if self.query is not None:
            url += self.query.render(values)
        return Request(
            self.method,
            url,
            self._render_headers(values),
            None if self.body is None else self.body.render(values).encode(),
            self.repeatable,
        )

    def _values(self, query: Query) -> dict[str, str]:
        if isinstance(query, ByNickname):
            value = query.nickname
            values = {"nickname": value, "profile_url": f"{self.profile_site}/m/{value}"}
        else:
            value = query.card_number
            values = {"card_number": value}
        if not value or not strict_json.is_unicode(value):
            raise Broken("the query cannot be sent", counts_against_breaker=False)
        return values

    def _render_headers(self, values: Mapping[str, str]) -> Mapping[str, str]:
        headers = dict(self.constant_headers)
        for name, value in self.headers.items():
            headers[name] = value.render(values)
            if not is_header_value(headers[name]):
                raise Broken("the query cannot be part of a header", counts_against_breaker=False)
        return headers
