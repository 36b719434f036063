"""The two operations: identify a user by profile URL or nickname, and by card number."""

from __future__ import annotations

from abc import abstractmethod
from asyncio import Future
from typing import ClassVar

from tornado_idv.errors import InvalidFormat
from tornado_idv.keys.api_key import Scope
from tornado_idv.model import Answer, Query
from tornado_idv.web.auth import AuthenticatedHandler
from tornado_idv.web.content_negotiation import check_media_types
from tornado_idv.web.errors import ApiError, rate_limited
from tornado_idv.web.json_body import parse_field
from tornado_idv.web.packet_cache import CacheableRequest


class IdentifyHandler(AuthenticatedHandler):
    """Checks the key and its limits, then the media types, then the body, then looks up."""

    allowed = ("POST",)
    scope: ClassVar[Scope]
    field: ClassVar[str]
    """The member of the body that holds what is asked for."""

    def handle(self) -> None:
        key = self.require_key(self.scope)
        check_media_types(self.fields)
        try:
            query = self.query = self.parse(parse_field(self.body, self.field))
        except InvalidFormat:
            self._charge_miss()
            raise
        directory = self.services.directory
        answer = directory.get_cached(query)
        self.exchange.cacheable = CacheableRequest(self.route, key, query, answer is not None)
        if answer is None:
            self.cache = "miss"
            self.wait_for(directory.start(query), self._send_result)
        else:
            self.cache = "hit"
            self._send_answer(answer)

    def _send_result(self, lookup: Future[Answer]) -> None:
        answer = lookup.result()
        exceeded = self.limits.spent_misses() if self.limits is not None else None
        if exceeded is not None:
            # Lookups that run at the same time would be as many guesses beyond the limit.
            raise rate_limited(exceeded)
        if answer.stale:
            self.cache = "stale"
        elif answer.coalesced:
            self.cache = "coalesced"
        elif answer.shared:
            self.cache = "shared"
        self._send_answer(answer)

    def _send_answer(self, answer: Answer) -> None:
        self.backend = answer.backend
        if answer.found:
            self.send(200, answer.body)
        else:
            self._charge_miss()
            self.send_error(ApiError.NOT_FOUND)

    def _charge_miss(self) -> None:
        if self.limits is not None:
            self.limits.charge_miss()

    @abstractmethod
    def parse(self, text: str) -> Query:
        """Return the query that the field's text stands for; raises `InvalidFormat`."""


class IdentifyUrlHandler(IdentifyHandler):
    """``{"input": "@nickname"}`` or ``{"input": "{profile_site}/m/nickname"}``."""

    route = "identify/url"
    scope: ClassVar[Scope] = "identify:url"
    field = "input"

    def parse(self, text: str) -> Query:
        return self.services.identifiers.parse_input(text)


class IdentifyCardHandler(IdentifyHandler):
    """``{"card_number": "digits"}``."""

    route = "identify/card"
    scope: ClassVar[Scope] = "identify:card"
    field = "card_number"

    def parse(self, text: str) -> Query:
        return self.services.identifiers.parse_card(text)
