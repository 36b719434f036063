"""The handlers that identify a user by profile URL or nickname, and by card number."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar

from tornado_idv.errors import InvalidFormat
from tornado_idv.limits import KeyLimits
from tornado_idv.model import Query
from tornado_idv.trace_context import RequestContext
from tornado_idv.web.fast_path.known_heads import read_query
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.json_body import check_media_types
from tornado_idv.web.lookups import IDENTIFY_CARD, IDENTIFY_URL, Operation, answer, find_past_cache
from tornado_idv.web.response import Result

_PAST_CACHE = "X-IDV-Past-Cache"
"""The header field of a request that must bypass the cache."""


class LookupHandler(ApiHandler):
    """A handler that looks a user up within the limits of a key."""

    async def look_up(self, parse: Callable[[], Query], limits: KeyLimits | None) -> None:
        """Look the user up and respond. An invalid query is charged as a miss."""
        try:
            query = self.query = parse()
        except InvalidFormat:
            if limits is not None:
                limits.charge_miss()
            raise
        self.respond(await self._look_up(query, limits))

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        result = answer(self.api, query, limits, RequestContext(self.request_id, self.trace))
        if isinstance(result, Result):
            return result
        with suppress(Exception):  # `result` turns the exception into a response
            await result.future
        return result.result()


class IdentifyHandler(LookupHandler):
    """Checks the key, its limits, the media types and the body, and looks the user up."""

    allowed = ("POST",)
    operation: ClassVar[Operation]

    async def post(self) -> None:
        limits = self.limits_within(self.accepted_key(self.operation.scope))
        check_media_types(self.request.headers)
        await self.look_up(partial(self.operation.query, self.body, self.api.identifiers), limits)
        self.learn_head(self.operation, read_query)

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        if _PAST_CACHE in self.request.headers:
            return await find_past_cache(self.api, query, limits)
        return await super()._look_up(query, limits)


class IdentifyUrlHandler(IdentifyHandler):
    """Handles ``{"input": "@nickname"}`` and ``{"input": "{profile_site}/m/nickname"}``."""

    operation = IDENTIFY_URL
    route = operation.route


class IdentifyCardHandler(IdentifyHandler):
    """Handles ``{"card_number": "digits"}``."""

    operation = IDENTIFY_CARD
    route = operation.route
