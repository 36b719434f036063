"""A pool of two connections to the first server that responds.

Servers may differ in their data, so only one server is in use at a time: the first in the list with
a connection.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from idv_ldap.connection import BoundConnection, connect
from idv_ldap.errors import ldap, to_lookup_failed
from idv_ldap.options import LdapOptions
from idv_ldap.refusals import REFUSALS, Refused
from tornado_idv import Broken, DaemonThread, LookupFailed, Unavailable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_COUNT = 2
"""Number of connections. Searches use one connection while the other is replaced."""
_STEPS = 10
"""Maximum number of steps in `connect`, each limited by `LdapOptions.connect_timeout`."""
_LOST = Unavailable("the connection was lost")
RETRY_INTERVAL = 1.0
RETURN_INTERVAL = 10.0
"""Maximum age in seconds of a connection to a server other than the first in the list."""
BROKEN_INTERVAL = 60.0
"""Seconds to the next attempt after a `Broken`. After a `Refused`, `Refusals` sets the pause."""


class ConnectionPool:
    """The connections of a backend. They are replaced when they are old or lost.

    ``problem`` is the reason why there is no connection, or ``None``. The pool calls
    ``on_available`` after each new connection.
    """

    def __init__(self, options: LdapOptions, on_available: Callable[[], None]) -> None:
        self._options = options
        self._on_available = on_available
        self._open: list[BoundConnection] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._failure: LookupFailed = Unavailable("the backend is not open")
        self._is_replica = options.require_context_csn
        self.attempts: dict[str, str] = {}
        """The result of the last attempt to connect, by the URI of the server."""

    @property
    def problem(self) -> str | None:
        return None if self._usable else self._failure.reason

    @property
    def _usable(self) -> list[BoundConnection]:
        return [each for each in self._open if not each.lost.done()]

    async def open(self) -> None:
        """Connect. Raises `Broken` for permanent errors.

        If no server can be reached, log an error and retry in the background. If a server rejects
        the credentials, raise `Refused` and retry in the background, too.
        """
        try:
            self._open.append(await self._connect())
        except Unavailable as error:
            self._report(error)
        except Refused as error:
            self._failure = error
        kept = [*self._open, *[None] * _COUNT][:_COUNT]
        self._keepers = [asyncio.create_task(self._keep(each)) for each in kept]
        if isinstance(self._failure, Refused):
            raise self._failure

    async def search(self, find: Callable[[BoundConnection], Awaitable[_T]]) -> tuple[str, _T]:
        """Search the server in use, on its connection with the fewest running searches.

        Return the identifier of the server and the result of ``find``. If the connection is lost,
        repeat the search on another connection.
        """
        failure = self._failure.copy()
        # The pool connects again anyway. An open circuit breaker would only delay the next lookup.
        failure.counts_against_breaker = False
        for _ in range(_COUNT + 1):  # each connection may be lost once, and be replaced
            usable = self._usable
            if not usable:
                break
            connection = min(usable, key=lambda each: (each.place, each.server, each.in_flight))
            try:
                return connection.server, await find(connection)
            except LookupFailed as error:
                if not connection.lost.done():
                    raise
                failure = error
        raise failure

    async def close(self) -> None:
        """Close all connections."""
        for keeper in self._keepers:
            keeper.cancel()
            await asyncio.wait([keeper])
        self._failure = Unavailable("the backend is closed")
        for connection in self._open:
            connection.lose(self._failure)

    async def _keep(self, connection: BoundConnection | None) -> None:
        """Keep one connection open: replace it each time that it is lost or old."""
        while True:
            if connection is not None:
                age = self._options.max_age
                age = min(age, RETURN_INTERVAL) if connection.place else age
                age *= random.uniform(0.9, 1.1)  # noqa: S311
                await asyncio.wait([connection.lost], timeout=age)
            new = await self._restore()
            self._open.append(new)
            if connection is not None:
                self._open.remove(connection)
                connection.lose(Unavailable("the connection was replaced"))  # `search` repeats
            self._failure = _LOST  # so that `_report` logs the next outage
            self._on_available()
            connection = new

    async def _restore(self) -> BoundConnection:
        """Return a new connection. Retry until an attempt succeeds."""
        while True:
            try:
                return await self._connect()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                if not isinstance(error, LookupFailed):
                    error = Unavailable(f"connecting failed with {type(error).__name__}")
                self._report(error)
                await asyncio.sleep(_pause(error))

    async def _connect(self) -> BoundConnection:
        """Connect to the first server that responds. If none does, raise an error with all reasons.

        If a server refuses the credentials, try no other: all servers have the same accounts.
        """
        options, failed = self._options, list[LookupFailed]()
        REFUSALS.check(options.credentials)
        for place, uri in enumerate(options.uris):
            try:
                async with asyncio.timeout(_STEPS * options.connect_timeout):
                    call = partial(connect, options, uri, is_replica=self._is_replica)
                    handle, types, has_context_csn, server = await DaemonThread("ldap")(call)
                connection = BoundConnection(handle, types, options, place, server)
            except Refused as error:
                self.attempts[uri] = error.reason.removeprefix(f"{uri}: ")
                raise
            except (ldap.LDAPError, OSError, ValueError, LookupFailed) as error:
                failure = to_lookup_failed(error)
                self.attempts[uri] = failure.reason
                failed.append(type(failure)(f"{uri}: {failure.reason}"))
            else:
                self.attempts[uri] = "connected and bound"
                if self._is_replica is None and has_context_csn:
                    self._is_replica = True
                if not self._usable:
                    _log.info("backend %s: connected to %s", options.name, uri)
                return connection
        raise type(failed[0])("; ".join(each.reason for each in failed))

    def _report(self, failure: LookupFailed) -> None:
        """Log a failure once per outage. While the second connection works, log only `Broken`."""
        is_news = isinstance(failure, Broken) or not self._usable
        if is_news and failure.reason != self._failure.reason:
            again = f"trying again every {_pause(failure):g} s"
            if isinstance(failure, Refused):
                again = "next attempt after a change of the password, or after 1, 10 and 60 minutes"
            _log.error("backend %s: %s; %s", self._options.name, failure.reason, again)
        self._failure = failure


def _pause(failure: LookupFailed) -> float:
    return RETRY_INTERVAL if isinstance(failure, Unavailable | Refused) else BROKEN_INTERVAL
