"""The two operations: identify a user by profile URL or nickname, and by card number."""

from __future__ import annotations

from asyncio import Future
from typing import ClassVar

from tornado_idv.errors import InvalidFormat
from tornado_idv.model import Answer
from tornado_idv.web.auth import AuthenticatedHandler
from tornado_idv.web.content_negotiation import check_media_types
from tornado_idv.web.lookups import (
    IDENTIFY_CARD,
    IDENTIFY_URL,
    Operation,
    Result,
    result_of,
    result_of_miss,
)
from tornado_idv.web.packet_cache import Accepted


class IdentifyHandler(AuthenticatedHandler):
    """Checks the key and its limits, then the media types, then the body, then looks up."""

    allowed = ("POST",)
    operation: ClassVar[Operation]

    def handle(self) -> None:
        key = self.require_key(self.operation.scope)
        check_media_types(self.fields)
        try:
            query = self.query = self.operation.query(self.body, self.services.identifiers)
        except InvalidFormat:
            if self.limits is not None:
                self.limits.charge_miss()
            raise
        self.exchange.cacheable = Accepted(self.operation, key)
        directory = self.services.directory
        answer = directory.get_cached(query)
        if answer is None:
            self.cache = "miss"
            self.wait_for(directory.start(query), self._send_result)
        else:
            self._respond(result_of(answer, self.limits, "hit"))

    def _send_result(self, lookup: Future[Answer]) -> None:
        self._respond(result_of_miss(lookup.result(), self.limits))

    def _respond(self, result: Result) -> None:
        self.cache, self.backend = result.cache, result.backend
        self.send(result.status, result.body, result.failure, result.fields)


class IdentifyUrlHandler(IdentifyHandler):
    """``{"input": "@nickname"}`` or ``{"input": "{profile_site}/m/nickname"}``."""

    operation = IDENTIFY_URL
    route = operation.route


class IdentifyCardHandler(IdentifyHandler):
    """``{"card_number": "digits"}``."""

    operation = IDENTIFY_CARD
    route = operation.route
