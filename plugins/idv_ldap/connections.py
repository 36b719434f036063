"""Two connections to the first server that responds, kept open, replaced and restored."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from idv_ldap.connection import Connection, connect
from idv_ldap.library import ldap, to_lookup_failed
from idv_ldap.options import LdapOptions
from idv_ldap.refusals import REFUSALS, Refused
from idv_ldap.schema import Attributes
from tornado_idv import Broken, DaemonThread, LookupFailed, Unavailable

_log = logging.getLogger(__name__)
Find = Callable[[Connection], Awaitable[list[Attributes]]]
_COUNT = 2
_STEPS = 10
"""Steps of `connect`, each bounded by `LdapOptions.connect_timeout`."""
_LOST = Unavailable("the connection was lost")
RETRY_INTERVAL = 1.0
BROKEN_INTERVAL = 60.0
"""The same after an error that waiting does not repair; `Refusals` has those of credentials."""


class Connections:
    """Open connections of a backend; ``problem`` is why there is none.

    ``on_available`` is called when there is a connection again.
    """

    def __init__(self, options: LdapOptions, on_available: Callable[[], None]) -> None:
        self._options = options
        self._on_available = on_available
        self._open: dict[Connection, float] = {}
        """When each is to be replaced, in seconds of the loop's clock."""
        self._keeper: asyncio.Task[None] | None = None
        self._failure: LookupFailed = Unavailable("the backend is not open")
        self._is_replica = options.require_context_csn
        self._broken: LookupFailed | None = None
        self._broken_until = 0.0

    @property
    def problem(self) -> str | None:
        return None if self._usable else self._failure.reason

    @property
    def _usable(self) -> list[Connection]:
        """The connections that are not lost, as far as is known."""
        return [each for each in self._open if not each.lost.done()]

    async def open(self) -> None:
        """Connect; raises `Broken` for what is not repaired by waiting.

        A server that cannot be reached is logged, and connected to as soon as it can be; so are
        servers after `Refused`.
        """
        refused = None
        try:
            self._open[await self._connect()] = self._expiry()
        except Unavailable as error:
            self._report(error)
        except Refused as error:
            self._failure = refused = error
        self._keeper = asyncio.create_task(self._keep())
        if refused is not None:
            raise refused

    async def search(self, find: Find) -> list[Attributes]:
        """Search by the connection with the fewest searches, and once more if that is lost."""
        for attempt in range(_COUNT):
            usable = self._usable
            if not usable:
                break
            connection = min(usable, key=lambda each: each.in_flight)
            try:
                return await find(connection)
            except LookupFailed:
                if not connection.lost.done() or attempt:
                    raise
        failure = self._failure.copy()
        failure.counts_against_breaker = False
        raise failure

    async def close(self) -> None:
        """Close all connections."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._failure = Unavailable("the backend is closed")
        for connection in self._open:
            connection.lose(self._failure)
        self._open.clear()

    async def _keep(self) -> None:
        """Restore connections that are lost, and replace those that are old."""
        while True:
            for each in [each for each in self._open if each.lost.done()]:
                self._failure = each.lost.result()
                del self._open[each]
            oldest = min(self._open, key=self._open.__getitem__, default=None)
            if oldest is not None and len(self._open) == _COUNT:
                rest = self._open[oldest] - asyncio.get_running_loop().time()
                every = [each.lost for each in self._open]
                done, _ = await asyncio.wait(
                    every, timeout=max(rest, 0.0), return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    continue
                self._open[oldest] = self._expiry()  # if it cannot be replaced now
            try:
                connection = await self._connect()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                if not isinstance(error, LookupFailed):
                    error = Unavailable(f"connecting failed with {type(error).__name__}")
                self._report(error)
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            if not self._usable:
                _log.info("backend %s: connected to %s", self._options.name, connection.uri)
            self._open[connection] = self._expiry()
            self._failure = _LOST  # so that the next outage is logged, too
            self._on_available()
            if oldest is not None and len(self._open) > _COUNT:
                del self._open[oldest]
                oldest.retire()

    def _expiry(self) -> float:
        age = self._options.max_age * random.uniform(0.9, 1.1)  # noqa: S311
        return asyncio.get_running_loop().time() + age

    async def _connect(self) -> Connection:
        """Connect to the first server that responds; raises the error of the first.

        One that refuses our credentials is the last, since the others have the same accounts.
        """
        options, first = self._options, None
        REFUSALS.check(options)
        now = asyncio.get_running_loop().time()
        if self._broken and now < self._broken_until:
            raise self._broken.copy()
        for uri in options.uris:
            try:
                async with asyncio.timeout(_STEPS * options.connect_timeout):
                    bound = await DaemonThread("ldap")(
                        partial(connect, options, uri, is_replica=self._is_replica)
                    )
                if self._is_replica is None and bound.has_context_csn:
                    self._is_replica = True
                return Connection(bound, uri, ignores_references=options.references == "ignore")
            except Refused:
                raise
            except (ldap.LDAPError, OSError, ValueError, LookupFailed) as error:
                failure = to_lookup_failed(error)
                failure = type(failure)(f"{uri}: {failure.reason}")
                first = first or failure
        if isinstance(first, Broken):
            self._broken, self._broken_until = first, now + BROKEN_INTERVAL
        raise first or Broken("uris is empty")

    def _report(self, failure: LookupFailed) -> None:
        """Log a failure once in an outage, and one that waiting does not repair also before one."""
        is_news = isinstance(failure, Broken) or not self._usable
        if is_news and failure.reason != self._failure.reason:
            interval = BROKEN_INTERVAL if isinstance(failure, Broken) else RETRY_INTERVAL
            again = f"`tornado-idv ldap try` shows more; trying again every {interval:g} s"
            if isinstance(failure, Refused):
                again = "trying again with another password, or after 1, then 10, then 60 minutes"
            _log.error("backend %s: %s; %s", self._options.name, failure.reason, again)
        self._failure = failure
