"""Lookups for proxies in the test double."""

from __future__ import annotations

from tornado_idv.features.double.handlers import DoubleHandler
from tornado_idv.features.verify.handler import VerifyHandler
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.model import Query
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.response import Result


class DoubleVerifyHandler(DoubleHandler, VerifyHandler):
    """Lookups for proxies, which have no body that could be slow or cut."""

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        _, result = await self.simulate(query)
        return result or await super()._look_up(query, limits)

    def respond(self, result: Result) -> None:
        if result.body.startswith(b"<"):
            ApiHandler.respond(self, result)  # the page of a proxy has no fields of ours
        else:
            super().respond(result)
