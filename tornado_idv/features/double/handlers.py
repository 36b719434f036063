"""Subclasses of the API's handlers. They return users and simulate faults of the test double."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from tornado_idv.config.settings import Settings
from tornado_idv.double.fault import Fault
from tornado_idv.features.double.state import Double
from tornado_idv.http.exchange import Exchange
from tornado_idv.limits import Exceeded, KeyLimits, Limit
from tornado_idv.model import Query
from tornado_idv.units import Rate
from tornado_idv.web.app import Route
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.handler import ApiHandler
from tornado_idv.web.json_body import encode_user
from tornado_idv.web.lookups import ApiContext, result_of_error
from tornado_idv.web.response import ECHOED, Result

_PIECES_PER_SECOND = 20
_ERRORS = {500: ApiError.INTERNAL, 503: ApiError.UNAVAILABLE}
_ONE_PER_SECOND = Exceeded(Limit("requests", Rate(1, 1.0)), 1.0)
_PAGE = "<!DOCTYPE html>\n<title>Error {0}</title>\n<h1>Error {0}</h1>\n"
_SIMULATED = "simulated"
_NO_RESPONSE = Result(
    ApiError.UNAVAILABLE.status, b"", code=ApiError.UNAVAILABLE.code, reason=_SIMULATED
)


class DoubleHandler(ApiHandler):
    """Base class. Users and faults of the double take precedence over lookups in backends."""

    def initialize(self, api: ApiContext) -> None:
        super().initialize(api)
        self._disconnected = asyncio.get_running_loop().create_future()
        self._connection = cast("Exchange", self.request.connection)

    def on_connection_close(self) -> None:
        """After a disconnect, end the simulated delay, so that the journal gets the request now."""
        self._disconnected.set_result(None)

    async def simulate(self, query: Query) -> tuple[Fault | None, Result | None]:
        """Return the fault of a lookup, and the simulated result. Each may be ``None``.

        If the fault prescribes a response, the result is this response, otherwise the user of the
        double. A call with a fault counts as one use of the fault.
        """
        double: Double = self.settings["parts"][Double.name]
        fault = double.take_fault(query, self.api.directory)
        failure = None if fault is None else await self._fail(fault)
        user = double.users.get(query)
        if failure is None and user is not None:
            return fault, Result(200, encode_user(user, self.api.identifiers))
        return fault, failure

    async def _fail(self, fault: Fault) -> Result | None:
        """Simulate the fault. Return its response, or ``None`` to continue with the lookup."""
        await asyncio.wait([self._disconnected], timeout=fault.delay)
        if self._disconnected.done():
            return _NO_RESPONSE
        if fault.reset:
            self._connection.reset()
            return _NO_RESPONSE
        if fault.status == ApiError.RATE_LIMITED.status:
            raise rate_limited(_ONE_PER_SECOND)
        if fault.status is not None:
            return result_of_error(ApiException(_ERRORS[fault.status], reason=_SIMULATED))
        if fault.proxy_status is not None:
            self.clear_header("X-Request-ID")
            self.clear_header(ECHOED)
            self.set_header("Content-Type", "text/html")
            page = _PAGE.format(fault.proxy_status).encode()
            return replace(_NO_RESPONSE, status=fault.proxy_status, body=page)
        return None

    async def send_in_pieces(self, result: Result, fault: Fault | None) -> Result:
        """Apply ``drip`` or ``cut`` to a result. Return the rest of it for the caller to send.

        ``drip`` slowly sends all but the last piece of the body. ``cut`` sends half of the body.
        """
        if fault is None or not (fault.cut or fault.drip) or not result.body:
            return result  # without a body, the client has disconnected
        body = result.body
        self.set_status(result.status)
        self.set_fields(result.fields)
        self.set_header("Content-Length", len(body))
        if fault.cut:
            self.write(body[: len(body) // 2])
            await self.flush()
            self._connection.close_after_response()
            return _NO_RESPONSE
        size = max(1, (fault.drip or 1) // _PIECES_PER_SECOND)
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        for piece in pieces[:-1]:
            self.write(piece)
            await self.flush()
            await asyncio.sleep(size / (fault.drip or 1))
        return replace(result, body=pieces[-1])


class SingleFaults(DoubleHandler):
    """Adds faults to a handler of single lookups."""

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        fault, result = await self.simulate(query)
        result = result or await super()._look_up(query, limits)  # type: ignore[misc]
        return await self.send_in_pieces(result, fault)


class BatchFaults(DoubleHandler):
    """Adds faults to batches. A fault with status 500 or 503 fails its item, not the batch."""

    async def _look_up_all(
        self, parsed: Sequence[Query | Result], limits: KeyLimits | None
    ) -> Result:
        results: dict[Query, Result] = {}
        in_pieces: Fault | None = None
        for query in dict.fromkeys(each for each in parsed if not isinstance(each, Result)):
            fault, result = await self.simulate(query)
            if result is not None:
                results[query] = result
                if not result.body.startswith(b"{"):
                    return result  # no response, or the page of a proxy
            if fault is not None and (fault.cut or fault.drip):
                in_pieces = fault
        parsed = [each if isinstance(each, Result) else results.get(each, each) for each in parsed]
        combined: Result = await super()._look_up_all(parsed, limits)  # type: ignore[misc]
        return await self.send_in_pieces(combined, in_pieces)


class VerifyFaults(DoubleHandler):
    """Adds faults except ``cut`` and ``drip`` to `VerifyHandler`, because it sends no body."""

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        _, simulated = await self.simulate(query)
        return simulated or await super()._look_up(query, limits)  # type: ignore[misc]

    def respond(self, result: Result) -> None:
        if result.body.startswith(b"<"):
            self.request.method = self._method  # Tornado sends no body in response to HEAD
            ApiHandler.respond(self, result)  # the page of a proxy has no X-Idv fields
        else:
            super().respond(result)


_FAULTS = {
    "identify/url": SingleFaults,
    "identify/card": SingleFaults,
    "identify/batch": BatchFaults,
    "verify": VerifyFaults,
}
"""For each route, the mixin class that adds faults to the handler of the route."""


def make_routes(settings: Settings, before: Iterable[Route]) -> Iterator[Route]:
    """In demo mode, yield routes of lookups with handlers that simulate faults."""
    for each in before if settings.demo else ():
        if faults := _FAULTS.get(each.handler.route):
            name = f"Double{each.handler.__name__}"
            yield each._replace(handler=type(name, (faults, each.handler), {}))
