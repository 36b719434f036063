"""Lookups in a PostgreSQL database, with detection of and recovery from outages and failovers.

While the backend is down, lookups fail immediately, and the backend tries to connect once a second.
These failures do not count for the circuit breaker, because an open circuit would prolong the
outage. After a failed lookup, a probe on another connection shows whether the server is down.

Three tasks run in the background. The first connects, probes the server and checks the table. The
second checks the lag of a standby. The third moves lookups to a server of the preferred role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from idv_postgres.availability import Availability, State
from idv_postgres.batches import Batches, BatchFailed
from idv_postgres.options import NOT_INSTALLED, PostgresOptions
from tornado_idv import (
    Backend,
    BackendResult,
    Broken,
    ByNickname,
    LookupFailed,
    Query,
    StartError,
    Step,
    Unavailable,
    User,
)

if TYPE_CHECKING:
    from idv_postgres.lookups import Lookups, Result
    from idv_postgres.store import PostgresUserStore

_log = logging.getLogger(__name__)
_START_TIMEOUT = 5.0
"""Maximum seconds to connect, or to check the table."""


class PostgresBackend(Backend[PostgresOptions]):
    """A backend with users in a table or view, or in the results of two configured queries."""

    options_type = PostgresOptions
    can_lose_users = True
    retry_interval: ClassVar[float] = 1.0
    """Seconds between two attempts to connect, and between two probes."""
    check_interval: ClassVar[float] = 10.0
    """Seconds between two checks of the table while no lookup fails."""

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options)
        try:
            # These modules import asyncpg.
            from idv_postgres import database, errors, listener, lookups  # noqa: PLC0415
        except ModuleNotFoundError:
            raise StartError(f"backend {self.name}: {NOT_INSTALLED}") from None
        self._errors = errors
        self._database = database.Database(options)
        self._availability = Availability()
        self._inspected = lookups.Lookups({})
        self._lookups: dict[type[Query], Callable[[str], Awaitable[Result]]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listener = None
        if options.notify is not None:
            self._listener = listener.Listener(options, self._database, self.notify_changed)

    @classmethod
    def user_store(cls, options: PostgresOptions) -> PostgresUserStore:
        """Return a store of ``table``. Raises `StartError` with ``by_nickname`` or ``by_card``."""
        if options.queries:
            raise StartError(
                f"backend {options.name}: by_nickname and by_card cannot list all users; "
                "use the options table and columns instead"
            )
        try:
            from idv_postgres.store import PostgresUserStore  # noqa: PLC0415 - imports asyncpg
        except ModuleNotFoundError:
            raise StartError(f"backend {options.name}: {NOT_INSTALLED}") from None
        return PostgresUserStore(options)

    @property
    def serves(self) -> frozenset[type[Query]]:
        """Both kinds of query if lookups read ``table``, or else those with configured SQL."""
        return frozenset(self.options.queries) or super().serves

    @property
    def problem(self) -> str | None:
        """The reason why lookups fail, or why "not found" from a standby is not trusted."""
        error = self._availability.error
        return self._database.problem if error is None else error.reason

    @property
    def revision(self) -> str | None:
        """The id of the LISTEN session. Between two sessions, changes of users are not noticed."""
        return None if self._listener is None else self._listener.session

    @property
    def servers(self) -> Sequence[tuple[str, str]]:
        return self._database.servers

    async def open(self) -> None:
        """Connect and validate the table. Raises `StartError` for permanent errors."""
        try:
            await self._connect()
            with suppress(Exception):  # lookups will report the error
                await self._database.follows()
        except Broken as error:
            raise StartError(f"backend {self.name}: {error.reason}") from None
        except Unavailable as error:
            self._mark_down(error)  # the monitor connects later
        tasks = [self._monitor(), self._observe(), self._move()]
        if self._listener is not None:
            tasks.append(self._listener.run())
        self._tasks = [*map(asyncio.create_task, tasks)]

    async def close(self) -> None:
        """Cancel the background tasks and close every connection."""
        tasks = [*self._tasks, *filter(None, [self._checking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._availability.change(State.CLOSED, Unavailable("the backend is closed"))
        await self._database.pool.close()

    async def find(
        self, query: Query, steps: list[Step] | None = None
    ) -> User | BackendResult | None:
        """Query the database. If the table was replaced, validate the new one and query again."""
        if self._availability.error is not None:
            raise self._availability.error.copy()
        inspected, lookup = self._inspected, self._lookups[type(query)]
        value = query.nickname if isinstance(query, ByNickname) else query.card_number
        if steps is not None:
            steps += (Step("statement", inspected.sql[type(query)]), Step("parameter", value))
        try:
            result = await lookup(value)
            if not result.rows and result.origin not in inspected.servers:
                raise self._errors.ReplacedError("the server has not been checked yet")  # noqa: TRY301 - caught below, as that of a lookup
        except asyncio.CancelledError:
            self._availability.change(State.SUSPECT)
            raise
        except self._errors.ReplacedError:
            if self._inspected is inspected and self._availability.error is None:
                await self._check_once()
                if self._inspected is inspected:
                    raise
            return await self.find(query, steps)
        if steps is not None:
            steps += (Step("rows", len(result.rows)), *(Step("row", [*row]) for row in result.rows))
        return self._to_answer(result)

    explain = find  # with steps

    def _to_answer(self, result: Result) -> User | BackendResult | None:
        user = result.user
        if user is None and result.reason is not None:
            raise Unavailable(result.reason, counts_against_breaker=False, memoized=False)
        ttl = None if result.reason is None else self.options.max_lag
        server = result.origin if self.options.canaries else None
        is_plain = result.storable and ttl is None and server is None
        return user if is_plain else BackendResult(user, ttl, result.storable, server)

    async def _fetch(self, sql: str, value: str | list[str]) -> Result:
        try:
            return await self._database.fetch(sql, value)
        except Exception as error:  # noqa: BLE001 - each is mapped
            is_timeout = self._errors.is_timeout(error)
            is_lost = self._errors.is_disconnect(error) or self._errors.is_full(error)
            if is_timeout or is_lost:
                self._availability.change(State.SUSPECT)
            # In a batch, one value may be slow or bad. A lost connection fails all values.
            if isinstance(value, list) and (is_timeout or not is_lost):
                raise BatchFailed from None
            failure = self._errors.to_lookup_failed(error)
            failure.counts_against_breaker &= not is_lost
            raise failure from None

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                lookups = await self._database.open()
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise self._errors.to_lookup_failed(error, with_message=True) from None
        self._use(lookups)
        self._availability.change(State.CONNECTED)
        for warning in lookups.warnings:
            _log.warning("backend %s: %s", self.name, warning)

    async def _check_once(self) -> None:
        """Check the table once for all waiting lookups. The check continues after their timeout."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait([self._checking], timeout=self.options.timeout / 2)
        if not self._checking.done():
            raise Unavailable("the server has not been checked yet", counts_against_breaker=False)
        try:
            self._checking.result()
        except LookupFailed as error:
            raise error.copy() from None

    async def _check(self, *, in_order: bool = False) -> None:
        """Validate the table again. If it has become invalid, mark the backend as down."""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                lookups = await self._database.inspect(in_order=in_order)
        except Exception as error:  # noqa: BLE001 - each is mapped
            self._availability.change(State.SUSPECT)
            if not self._errors.is_timeout(error):  # after a timeout, the table may only be locked
                self._on_failed_probe(error)
            raise self._errors.to_lookup_failed(error, with_message=True) from None
        if lookups != self._inspected:
            self._use(lookups)

    def _use(self, lookups: Lookups) -> None:
        self._lookups = {kind: partial(self._fetch, sql) for kind, sql in lookups.sql.items()}
        for kind, batch_sql in lookups.batch_sql.items():
            batches = Batches(self._fetch, lookups.sql[kind], batch_sql, self.options.pool.max)
            self._lookups[kind] = batches.fetch
        self._inspected = lookups

    async def _monitor(self) -> None:
        """While connected, probe the server or check the table. While down, connect again."""
        while True:
            with suppress(LookupFailed):
                await self._watch()
            await asyncio.sleep(self.retry_interval)
            if self._availability.state is State.DOWN:
                try:
                    await self._connect()
                except LookupFailed as error:
                    self._mark_down(error)
                else:
                    self.notify_available(verified=True)
                    _log.info("backend %s: connected", self.name)

    async def _watch(self) -> None:
        """Probe the server after a failed lookup. Otherwise check the table at intervals."""
        try:
            async with asyncio.timeout(self.check_interval):
                await self._availability.is_disturbed.wait()
        except TimeoutError:
            await self._check(in_order=True)
            self.notify_available(verified=True)
            return
        if self._availability.state is not State.SUSPECT:
            return
        # The state changes before the probe: a lookup that fails meanwhile needs another probe.
        self._availability.change(State.CONNECTED)
        try:
            await self._database.probe()
        except Exception as error:  # noqa: BLE001 - each is mapped
            self._on_failed_probe(error)
        else:
            self.notify_available()

    async def _observe(self) -> None:
        """At intervals, update the state of the standby in use, and log a change of servers."""
        before: Sequence[tuple[str, str]] = ()
        while True:
            try:
                async with asyncio.timeout(self.options.timeout):
                    await self._database.observe()
            except Exception:  # noqa: BLE001 - the probe reports it
                self._availability.change(State.SUSPECT)
            servers, is_wanted = self.servers or before, self._database.wanted_role is None
            if servers != before and (before or not is_wanted):
                used = ", ".join(f"{address} ({role})" for address, role in servers)
                level = logging.INFO if is_wanted else logging.WARNING
                _log.log(level, "backend %s: lookups use %s", self.name, used)
            before = servers
            await asyncio.sleep(self.options.max_lag / 4)

    async def _move(self) -> None:
        """Move lookups to a server of the wanted role. A host that hangs delays only this task."""
        while True:
            await asyncio.sleep(self.retry_interval)
            with suppress(Exception):  # the next attempt may succeed
                await self._database.move()

    def _on_failed_probe(self, error: Exception) -> None:
        # If no connection is left, every lookup would wait and then fail like the probe.
        if self._errors.is_disconnect(error) or not self._database.pool.connections:
            self._mark_down(self._errors.to_lookup_failed(error, with_message=True))

    def _mark_down(self, error: LookupFailed) -> None:
        """Make all lookups fail with this error until an attempt to connect succeeds."""
        before = self._availability.error
        if before is None or error.reason != before.reason:
            text = "backend %s: %s; trying again every %g s"
            _log.error(text, self.name, error.reason, self.retry_interval)
        error.counts_against_breaker = False
        self._availability.change(State.DOWN, error)
        self._database.pool.terminate()
