"""The two operations: who is it, by profile URL or nickname, and by card number."""

from __future__ import annotations

from abc import abstractmethod
from asyncio import Future
from typing import ClassVar

from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.api_key import Scope
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Answer, Query
from tornado_idv.web.bearer import BearerAuthMixin
from tornado_idv.web.handler import JsonHandler
from tornado_idv.web.media import check_media
from tornado_idv.web.packets import Meaning
from tornado_idv.web.refusals import Refusal
from tornado_idv.web.wire import read_member


class IdentifyHandler(BearerAuthMixin, JsonHandler):
    """Checks the key, then the media type, then the body, then looks up."""

    allowed = ("POST",)
    scope: ClassVar[Scope]
    member: ClassVar[str]
    """The member of the body that holds what is asked."""

    def initialize(self, directory: Directory, identifiers: Identifiers) -> None:
        self.directory = directory
        self.identifiers = identifiers

    def post(self) -> None:
        key = self.require_key(self.scope)
        if not self.wire.understood.takes_json:
            check_media(self.request.headers)
            self.wire.understood.takes_json = True
        query = self.parse(read_member(self.request.body, self.member))
        answer = self.directory.get_cached(query)
        self.wire.meaning = Meaning(self.route, key, query, remembered=answer is not None)
        if answer is None:
            self.wait_for(self.directory.start(query), self._end)
        else:
            self.answer(answer)

    def answer(self, answer: Answer) -> None:
        """Ends the request with what a lookup came to."""
        if not answer.found:
            self.set_status(Refusal.NOT_FOUND.status)
        self.finish(answer.body)

    def _end(self, lookup: Future[Answer]) -> None:
        self.answer(lookup.result())

    @abstractmethod
    def parse(self, text: str) -> Query:
        """The query that the member's text stands for; raises `InvalidFormat`."""


class IdentifyUrlHandler(IdentifyHandler):
    """Asked with ``{"input": "@nickname"}`` or ``{"input": "{profile_site}/m/nickname"}``."""

    route = "identify/url"
    scope: ClassVar[Scope] = "identify:url"
    member = "input"

    def parse(self, text: str) -> Query:
        return self.identifiers.parse_input(text)


class IdentifyCardHandler(IdentifyHandler):
    """Asked with ``{"card_number": "digits"}``."""

    route = "identify/card"
    scope: ClassVar[Scope] = "identify:card"
    member = "card_number"

    def parse(self, text: str) -> Query:
        return self.identifiers.parse_card(text)
