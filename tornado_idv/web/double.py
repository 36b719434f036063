"""The test double: users and faults that tests set, a journal, and handlers that obey them.

It exists in demo mode alone, and takes the place of handlers and packet cache; without it, neither
has any code for it.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, deque
from typing import cast

from msgspec.structs import replace

from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.interfaces.fault import Fault
from tornado_idv.limits.key_limits import Exceeded, KeyLimits, Limit
from tornado_idv.log_format import format_time
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import ByCard, Query, User
from tornado_idv.units import Rate
from tornado_idv.web.access_log import AccessRecord, Failure, RequestLog
from tornado_idv.web.errors import ApiError, ApiException, rate_limited
from tornado_idv.web.identify import IdentifyCardHandler, IdentifyHandler, IdentifyUrlHandler
from tornado_idv.web.json_body import encode_user
from tornado_idv.web.lookups import Result, Services
from tornado_idv.web.packet_cache import PacketCache, PacketFastPath, PendingResponse
from tornado_idv.web.response import ECHOED

MAX_REQUESTS = 1000
"""Requests that the journal keeps."""
_CLOCK_TOLERANCE = 0.001
"""Seconds by which a request may seem to be older than it is: its duration is measured roughly."""
_SEED = 0
_PIECES_PER_SECOND = 20
_ERRORS = {500: ApiError.INTERNAL, 503: ApiError.UNAVAILABLE}
_ONE_PER_SECOND = Exceeded(Limit("requests", Rate(1, 1.0)), 1.0)
_PAGE = "<!DOCTYPE html>\n<title>Error {0}</title>\n<h1>Error {0}</h1>\n"
_SIMULATED = Failure(ApiError.UNAVAILABLE.code, None, "simulated")
_NO_RESPONSE = Result(ApiError.UNAVAILABLE.status, b"", failure=_SIMULATED)


class Double(RequestLog):
    """Users and faults set at run time, and the journal of requests.

    ``users`` and ``faults`` are by query; the fault of all queries has the key ``None``.
    Both come before those of the backends. ``injected`` counts the uses of each fault.
    """

    def __init__(self, access_log: RequestLog | None = None) -> None:
        self._access_log = access_log
        self.reset()

    def reset(self) -> None:
        """Discard all that was set, counted and recorded; start the random numbers again."""
        self.users: dict[Query, User] = {}
        self.faults: dict[Query | None, Fault] = {}
        self.injected = Counter[Fault]()
        self._reset_at = time.time()
        self._journal = deque[tuple[float, AccessRecord, str | None]](maxlen=MAX_REQUESTS)
        self._random = random.Random(_SEED)  # noqa: S311 - repeatable on purpose

    def set_user(self, user: User, *queries: Query) -> None:
        """Add or replace the user that is found by these queries."""
        self.remove_user(queries[0])
        self.users |= dict.fromkeys(queries, user)

    def remove_user(self, query: Query) -> bool:
        """Remove a user that was added; return whether there was one."""
        user = self.users.get(query)
        self.users = {key: each for key, each in self.users.items() if each is not user}
        return user is not None

    def concerns(self, query: Query, directory: Directory) -> bool:
        """Return whether the answer to a query may be another than that of the directory."""
        return query in self.users or self._fault_of(query, directory) is not None

    def take_fault(self, query: Query, directory: Directory) -> Fault | None:
        """Return the fault with which this lookup fails, and count it."""
        fault = self._fault_of(query, directory)
        if fault is None or (fault.times is not None and self.injected[fault] >= fault.times):
            return None
        if self._random.random() >= fault.probability:
            return None
        self.injected[fault] += 1
        return fault

    def _fault_of(self, query: Query, directory: Directory) -> Fault | None:
        places = [self.faults, *(guard.backend.faults for guard in directory.guards)]
        found = (faults[key] for key in (query, None) for faults in places if key in faults)
        return next(found, None)

    @property
    def requests(self) -> list[dict[str, object]]:
        """The journal, oldest first."""
        return [
            {
                "timestamp": format_time(at),
                "method": record.method,
                "route": record.route,
                "query": query,
                "status": record.status,
                "code": record.code,
                "key": record.key,
                "request_id": record.request_id,
            }
            for at, record, query in self._journal
        ]

    def subject_of(self, query: Query | None) -> str | None:
        """Return the text of a query for the journal; the log itself gets no more than usual."""
        return query.text if query else None

    def add(self, record: AccessRecord, now: float | None) -> None:
        """Add a request to the journal, unless it is from before a reset, and to the access log."""
        text, record.subject = record.subject, None
        at = time.time() if now is None else now
        if at - record.ms / 1000 > self._reset_at - _CLOCK_TOLERANCE:
            self._journal.append((at, record, text))
        if self._access_log is not None:
            # Of a query the log takes the text alone, so that its kind does not matter.
            record.subject = self._access_log.subject_of(ByCard(text)) if text is not None else None
            self._access_log.add(record, now)


class DoubleHandler(IdentifyHandler):
    """Looks up as usual, but for users and faults of the double."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._disconnected = asyncio.get_running_loop().create_future()

    def on_connection_close(self) -> None:
        """End a delay: the journal has a request when its client has gone, not an hour later."""
        self._disconnected.set_result(None)

    async def _look_up(self, query: Query, limits: KeyLimits | None) -> Result:
        double: Double = self.settings["double"]
        fault = double.take_fault(query, self.services.directory)
        if fault is not None:
            await asyncio.wait([self._disconnected], timeout=fault.delay)
            if self._disconnected.done():
                return _NO_RESPONSE
            if fault.reset:
                self._connection.reset()
                return _NO_RESPONSE
            if fault.status == ApiError.RATE_LIMITED.status:
                raise rate_limited(_ONE_PER_SECOND)
            if fault.status is not None:
                raise ApiException(_ERRORS[fault.status], reason=_SIMULATED.reason)
            if fault.proxy_status is not None:
                self.clear_header("X-Request-ID")
                self.clear_header(ECHOED)
                self.set_header("Content-Type", "text/html")
                page = _PAGE.format(fault.proxy_status).encode()
                return Result(fault.proxy_status, page, failure=_SIMULATED)
        user = double.users.get(query)
        if user is None:
            result = await super()._look_up(query, limits)
        else:
            result = Result(200, encode_user(user, self.services.identifiers))
        if fault is not None and (fault.cut or fault.drip):
            return await self._send_in_pieces(result, fault)
        return result

    async def _send_in_pieces(self, result: Result, fault: Fault) -> Result:
        """Send the body in pieces, all but the last; or half of it, and close the connection."""
        body = result.body
        self.set_status(result.status)
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

    @property
    def _connection(self) -> Exchange:
        return cast("Exchange", self.request.connection)


class DoubleUrlHandler(DoubleHandler, IdentifyUrlHandler):
    """Lookups by nickname or profile URL."""


class DoubleCardHandler(DoubleHandler, IdentifyCardHandler):
    """Lookups by card number."""


class DoublePacketCache(PacketCache):
    """Leaves requests that concern the double to its handlers."""

    def __init__(self, services: Services, max_body: int, double: Double) -> None:
        super().__init__(services, max_body)
        self.double = double

    def connect(self, peer: Peer) -> PacketFastPath:
        return _DoubleFastPath(self, peer)


class _DoubleFastPath(PacketFastPath):
    __slots__ = ("_double",)

    def __init__(self, cache: DoublePacketCache, peer: Peer) -> None:
        super().__init__(cache, peer)
        self._double = cache.double

    def respond(
        self, match: re.Match[bytes], body: bytes, sink: ResponseSink
    ) -> bytes | PendingResponse | None:
        meaning = self._template.meaning if self._template else None
        if meaning is None:
            return None
        known = meaning.queries.get(body) or self._parse(meaning.operation, body)
        if known is None or self._double.concerns(known.query, self._services.directory):
            return None
        return super().respond(match, body, sink)
