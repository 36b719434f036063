"""Lookups in a PostgreSQL database that may be restarted, fail over or be unreachable.

The backend is *connected* or *down*. While it is down, lookups fail at once, and it tries to
connect once a second; these failures do not count for the circuit breaker, which would otherwise
prolong the outage. A lookup whose connection was lost, or that was not answered in time, makes it
probe the server by another connection: if that fails, too, the backend is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

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
    from idv_postgres.lookups import Lookups
    from idv_postgres.standby import Result
    from idv_postgres.store import PostgresUserStore

_log = logging.getLogger(__name__)
_NOT_OPEN = Unavailable("the backend is not open")
_START_TIMEOUT = 5.0
"""Seconds in which the database must respond when the backend connects, or checks the table."""


class PostgresBackend(Backend[PostgresOptions]):
    """Users in one table or view of a PostgreSQL database, or behind two queries."""

    options_type = PostgresOptions
    can_lose_users = True
    retry_interval: ClassVar[float] = 1.0
    """Seconds between two attempts to connect, and between two probes."""
    check_interval: ClassVar[float] = 10.0
    """Seconds between two checks of the table while no lookup fails."""

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options)
        try:
            # They import asyncpg.
            from idv_postgres import database, errors, listener, lookups  # noqa: PLC0415
        except ModuleNotFoundError:
            raise StartError(f"backend {self.name}: {NOT_INSTALLED}") from None
        self._errors, self._only_user = errors, lookups.only_user
        self._database = database.Database(options)
        self._lookups: dict[type[Query], Callable[[str], Awaitable[Result]]] | None = None
        self._inspected = lookups.Lookups({})
        self._checking: asyncio.Task[None] | None = None
        self._error: LookupFailed = _NOT_OPEN
        self._suspect = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener = None
        if options.notify is not None:
            self._listener = listener.Listener(
                options,
                self.notify_changed,
                lambda: self._inspected.relation,
                self._database.standbys.require,
                lambda: self._database.servers,
            )

    @classmethod
    def user_store(cls, options: PostgresOptions) -> PostgresUserStore:
        """Return all users of the table; raises `StartError` for queries of the operator's own."""
        if options.queries:
            raise StartError(
                f"backend {options.name}: by_nickname and by_card find single users; only the "
                "option table names all of them"
            )
        try:
            from idv_postgres.store import PostgresUserStore  # noqa: PLC0415 - imports asyncpg
        except ModuleNotFoundError:
            raise StartError(f"backend {options.name}: {NOT_INSTALLED}") from None
        return PostgresUserStore(options)

    @property
    def serves(self) -> frozenset[type[Query]]:
        """Both kinds of query, or those that a query is configured for."""
        return frozenset(self.options.queries) or super().serves

    @property
    def problem(self) -> str | None:
        """Why every lookup fails, or each one of a user that a standby lacks."""
        return self._error.reason if self._lookups is None else self._database.problem

    @property
    def revision(self) -> str | None:
        """Another one for each connection that listens: what changed before is not known."""
        return None if self._listener is None else self._listener.session

    @property
    def servers(self) -> Sequence[tuple[str, str]]:
        """The servers in use."""
        return self._database.servers

    async def open(self) -> None:
        """Connect and validate the table; raises `StartError` for what is not to be served.

        A database that cannot be reached is logged, and connected to as soon as it can be.
        """
        try:
            await self._connect()
            with suppress(Exception):  # lookups will report it
                await self._database.settle()
        except Broken as error:
            raise StartError(f"backend {self.name}: {error.reason}") from None
        except Unavailable as error:
            self._mark_down(error)
        tasks = [self._monitor(), self._observe(), self._move()]
        if self._listener is not None:
            tasks.append(self._listener.run())
        self._tasks = [*map(asyncio.create_task, tasks)]

    async def find(
        self, query: Query, steps: list[Step] | None = None
    ) -> User | BackendResult | None:
        """Query the database; again after a check if it finds another table than was checked."""
        if self._lookups is None:
            raise self._error.copy()
        inspected, lookup = self._inspected, self._lookups[type(query)]
        value = query.nickname if isinstance(query, ByNickname) else query.card_number
        if steps is not None:
            steps += (Step("statement", inspected.sql[type(query)]), Step("parameter", value))
        may_have_at_sign = inspected.has_at_signs and isinstance(query, ByNickname)
        try:
            result = await lookup(value)
            self._require_inspected(result, inspected)
            # Such a user exists, and "not found" would be wrong.
            if not result.rows and may_have_at_sign and (await lookup(f"@{value}")).rows:
                raise Broken("the nickname of a row is stored with @ in front")
        except asyncio.CancelledError:
            self._suspect.set()
            raise
        except self._errors.ReplacedError:
            if self._inspected is inspected and self._lookups is not None:
                await self._check_once()
                if self._inspected is inspected:
                    raise
            return await self.find(query, steps)
        rows = result.rows
        if steps is not None:
            steps += (Step("rows", len(rows)), *(Step("row", [*row]) for row in rows))
        user = self._only_user(rows)
        if user is None and result.reason is not None:
            raise Unavailable(result.reason, counts_against_breaker=False, memoized=False)
        return self._limited(user, result)

    def _limited(self, user: User | None, result: Result) -> User | BackendResult | None:
        ttl = None if result.reason is None else self.options.max_lag
        server = result.origin if self.options.canaries else None
        is_plain = result.storable and ttl is None and server is None
        return user if is_plain else BackendResult(user, ttl, result.storable, server)

    def _require_inspected(self, result: Result, inspected: Lookups) -> None:
        if not result.rows and result.address != inspected.address:
            raise self._errors.ReplacedError("the server has not been checked yet")

    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:
        """Query the database, and show the statement and what came back."""
        return await self.find(query, steps)

    async def _fetch(self, sql: str, value: str | list[str]) -> Result:
        try:
            return await self._database.fetch(sql, value)
        except Exception as error:  # noqa: BLE001 - each is mapped
            is_timeout = self._errors.is_timeout(error)
            is_lost = self._errors.is_disconnect(error) or self._errors.is_full(error)
            if is_timeout or is_lost:
                self._suspect.set()
            if isinstance(value, list) and (is_timeout or not is_lost):
                raise BatchFailed from None
            failure = self._errors.to_lookup_failed(error)
            if is_lost:
                failure.counts_against_breaker = False
            raise failure from None

    async def close(self) -> None:
        """Close every connection, after running lookups."""
        tasks = [*self._tasks, *filter(None, [self._checking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lookups, self._error = None, Unavailable("the backend is closed")
        await self._database.pool.close()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                lookups = await self._database.open()
        except Exception as error:  # noqa: BLE001 - each is mapped
            raise self._errors.to_lookup_failed(error, with_message=True) from None
        self._use(lookups)
        self._error = _NOT_OPEN
        for warning in lookups.warnings:
            _log.warning("backend %s: %s", self.name, warning)

    async def _check_once(self) -> None:
        """Check the table for all lookups that wait; it goes on if they are out of time."""
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
        """Validate the table again; the backend is down if it is not to be served any more."""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                lookups = await self._database.inspect(in_order=in_order)
        except Exception as error:  # noqa: BLE001 - each is mapped
            self._suspect.set()  # the monitor probes, or connects again if it is down now
            if not self._errors.is_timeout(error):  # a lock may have been waited for
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

    async def _observe(self) -> None:
        """Keep the state of a standby in use up to date, and log each change of servers."""
        before: Sequence[tuple[str, str]] = ()
        while True:
            try:
                async with asyncio.timeout(self.options.timeout):
                    await self._database.observe()
            except Exception:  # noqa: BLE001 - the probe reports it
                self._suspect.set()
            servers, is_wanted = self.servers or before, self._database.wanted_role is None
            if servers != before and (before or not is_wanted):
                used = ", ".join(f"{address} ({role})" for address, role in servers)
                level = logging.INFO if is_wanted else logging.WARNING
                _log.log(level, "backend %s: lookups use %s", self.name, used)
            before = servers
            await asyncio.sleep(self.options.max_lag / 4)

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(self.retry_interval)
            with suppress(Exception):  # the next attempt may succeed
                await self._database.move()

    async def _monitor(self) -> None:
        while True:
            if self._lookups is not None:
                with suppress(LookupFailed):
                    await self._probe()
            await asyncio.sleep(self.retry_interval)
            if self._lookups is None:
                try:
                    await self._connect()
                except LookupFailed as error:
                    self._mark_down(error)
                else:
                    self.notify_available(verified=True)
                    _log.info("backend %s: connected", self.name)

    async def _probe(self) -> None:
        """Connect once a lookup has failed, or check the table after some time without that."""
        try:
            async with asyncio.timeout(self.check_interval):
                await self._suspect.wait()
        except TimeoutError:
            await self._check(in_order=True)
            self.notify_available(verified=True)
            return
        self._suspect.clear()
        try:
            await self._database.probe()
        except Exception as error:  # noqa: BLE001 - each is mapped
            self._on_failed_probe(error)
        else:
            self.notify_available()

    def _on_failed_probe(self, error: Exception) -> None:
        if self._errors.is_disconnect(error) or not self._database.pool.connections:
            self._mark_down(self._errors.to_lookup_failed(error, with_message=True))

    def _mark_down(self, error: LookupFailed) -> None:
        """Fail each lookup with this error until the next attempt to connect succeeds."""
        if error.reason != self._error.reason:
            text = "backend %s: %s; trying again every %g s"
            _log.error(text, self.name, error.reason, self.retry_interval)
        error.counts_against_breaker = False
        self._error, self._lookups = error, None
        self._database.pool.terminate()
