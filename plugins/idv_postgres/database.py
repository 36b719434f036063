"""Lookups in one database: their statements, their connections, and the servers in use."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from idv_postgres.connection import MIN_CONNECT_TIMEOUT, Connection, Connector, Pool
from idv_postgres.lookups import Lookups, Result, inspect
from idv_postgres.options import PostgresOptions
from idv_postgres.relation import SERVER
from idv_postgres.standby import NO_LOOKUP, Standbys, with_state
from tornado_idv import Broken

_TIMELINE = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
  ELSE left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END
"""
_SERVER_SHARE = 0.9
"""The server stops a query after this fraction of ``timeout``. The connection remains usable."""
_BATCH_SHARE = 1 / 3
"""Fraction of ``timeout`` for a query for several values. If it fails, single queries follow."""
_ROLLBACK_SHARE = 1 / 6
"""Fraction of ``timeout`` for a rollback. After this time, the connection is closed."""


class Executor:
    """Runs statements of lookups, and records the roles of servers.

    ``lookups`` has the statements from the last inspection.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._is_prepared, self._timeout = options.prepared_statements, options.timeout
        self._limit = max(1, int(options.timeout * _SERVER_SHARE * 1000))
        self.settings: dict[str, str] = {}
        """The settings of each session. Behind a pooler, `_transaction` sets them instead."""
        if self._is_prepared:
            self.settings = {
                "application_name": "tornado-idv",
                "statement_timeout": str(self._limit),
                "row_security": "off",
                # In other isolation levels, a lookup that waits for a TRUNCATE keeps its older
                # snapshot. A table that was filled again meanwhile is empty in it.
                "default_transaction_isolation": "read committed",
            }
        self.lookups = Lookups({})
        self.standbys = Standbys(options.max_lag)
        self.servers: dict[str, tuple[str, str | None]] = {}
        """For each address, its role, and why its "not found" is not trusted (or ``None``)."""

    async def run(self, connection: Connection, sql: str, value: str | list[str]) -> Result:
        """Run a lookup for one or several values. For several, it may raise `TimeoutError`.

        If a query calls a function and finds no row, it is repeated twice in one transaction. After
        a wait for a TRUNCATE, a STABLE function still reads the snapshot from before the wait. The
        last query gets a new snapshot, and already has the lock. A foreign server keeps a snapshot
        until its transaction ends, so the first query has a transaction of its own.
        """
        is_batch, may_repeat = isinstance(value, list), sql in self.lookups.repeated
        if self._is_prepared:
            result = await self._fetch(connection, sql, value)
        else:
            async with self._transaction(connection):
                result = await self._fetch(connection, sql, value)
        # In a batch, only some rows may be missing.
        if may_repeat and (is_batch or not result.rows):
            async with self._transaction(connection):
                await self._fetch(connection, sql, value)
                result = await self._fetch(connection, sql, value)
        return result

    @asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncIterator[None]:
        """Run a block as a transaction with its own settings.

        A pooler may run each transaction in another session, so settings of a session are lost.
        """
        path = self.lookups.search_path
        try:
            await connection.execute(
                "BEGIN ISOLATION LEVEL READ COMMITTED; "
                f"SET LOCAL statement_timeout = {self._limit}; "
                f"SET LOCAL row_security = off{path and f'; SET LOCAL search_path TO {path}'}"
            )
            yield
            await connection.execute("COMMIT")
        except Exception:
            try:
                # After a timeout, the rollback waits until the server has stopped the statement.
                async with asyncio.timeout(self._timeout * _ROLLBACK_SHARE):
                    await connection.execute("ROLLBACK")
            except Exception:  # noqa: BLE001 - the connection may be lost
                connection.terminate()
            raise

    async def _fetch(self, connection: Connection, sql: str, value: str | list[str]) -> Result:
        """Run a statement. If the server may be a standby that is behind, query its state, too."""
        is_batch = isinstance(value, list)
        limit = self._timeout * _BATCH_SHARE if is_batch else None
        fetch = connection.fetch_prepared if self._is_prepared else connection.fetch
        is_certain = connection.standby is None or self.standbys.is_certain(connection.standby)
        # Behind a pooler, another server may run the next statement, so no state is certain.
        if self._is_prepared and is_certain:
            return Result(await fetch(sql, value, timeout=limit), origin=connection.server)
        # The rows may be too old at first, and new enough in a second statement.
        for _ in range(2):
            start = self.standbys.start()
            rows = await fetch(with_state(sql, is_batch=is_batch), value, timeout=limit)
            result = self.standbys.finish(start, rows)
            if not result.may_repeat:
                break
        connection.standby = result.standby
        role = "primary" if result.standby is None else "standby"
        reason = result.reason and f"{connection.address} is a standby that {result.reason}"
        self.servers[connection.address] = role, reason
        return result._replace(reason=reason, origin=connection.server)


class Database:
    """The statements and connections of lookups, and the choice of the server.

    Methods raise asyncpg's errors.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self.executor = Executor(options)
        self._new_connector = partial(Connector, options.dsn, timeout=options.timeout)
        self._connector = self._new_connector()
        self.pool = Pool(self._connector.connect, options.pool.max)
        self._timeline = ""
        """The primary's WAL timeline at the last inspection. Each promotion begins a new one."""
        self._newest = ""
        """The newest of all these timelines."""
        self._has_hung = False
        """Whether, since the last probe, a lookup was cancelled while it waited for a response."""

    async def open(self) -> Lookups:
        """Validate the table, and replace the pool by a new one."""
        self.pool.terminate()
        lookups = await self.inspect(in_order=True)
        settings = self.executor.settings
        if settings and lookups.search_path:
            settings = {**settings, "search_path": lookups.search_path}
        pool = Pool(partial(self._connect_for_pool, settings), self._options.pool.max)
        try:
            await pool.fill(self._options.pool.min)
        except BaseException:
            pool.terminate()
            raise
        self.pool = pool
        return lookups

    async def inspect(self, *, in_order: bool = False) -> Lookups:
        """Validate the table on a separate connection, with the ``search_path`` of the role.

        The host in use is tried first, or with ``in_order``, the first host of the URI. While a
        standby is behind, ``in_order`` is ignored, because lookups could return to this standby.
        Afterwards, lookups use the validated host. If the table is `Broken`, the pool is closed.
        """
        last = self._connector.last
        is_well = not any(problem for _, problem in self.executor.servers.values())
        connector = self._new_connector() if in_order and is_well else self._connector
        with await connector.connect(self.executor.settings) as connection:
            timeline = await self._timeline_of(connection)
            # The first host may be the primary from before a failover.
            if in_order and last != connection.address and timeline < self._timeline:
                return await self.inspect()
            # Lookups use it while the new primary cannot be reached.
            is_old = in_order and last == connection.address and "" < timeline < self._newest
            if is_old and await self._reaches_newer(timeline):
                return await self.inspect()
            self._connector.last, self._timeline = connection.address, timeline
            self._newest = max(timeline, self._newest)
            await self._identify(connection)
            try:
                self.executor.lookups = await self._inspect(connection)
            except Broken:
                self.pool.terminate()
                raise
            self._leave_other_hosts(connection)
            await connection.close(timeout=MIN_CONNECT_TIMEOUT)
        return self.executor.lookups

    async def _timeline_of(self, connection: Connection) -> str:
        if not self._options.prepared_statements:
            return ""
        return str(await connection.fetchval(_TIMELINE))

    async def _reaches_newer(self, timeline: str) -> bool:
        """Connect to a host other than that in use. If it has a newer timeline, use this host."""
        connector = self._new_connector(avoid={self._connector.last})
        with await connector.connect(self.executor.settings) as connection:
            is_newer = await self._timeline_of(connection) > timeline
            if is_newer:
                self._connector.last = connection.address
        return is_newer

    async def _inspect(self, connection: Connection) -> Lookups:
        async with connection.transaction(readonly=True):
            if not self._options.prepared_statements:
                await connection.execute("SET LOCAL row_security = off")
            elif await connection.fetchval("SHOW row_security") != "off":
                raise Broken(
                    "a pooler ignores the startup parameter row_security; remove it from "
                    "ignore_startup_parameters and write prepared_statements: false"
                )
            return await inspect(connection, self._options, self.executor.lookups)

    async def _connect_for_pool(self, settings: Mapping[str, str]) -> Connection:
        connection = await self._connector.connect(settings)
        try:
            await self._identify(connection)
        except BaseException:
            connection.terminate()
            raise
        self._leave_other_hosts(connection)
        return connection

    async def _identify(self, connection: Connection) -> None:
        connection.server = connection.address
        # A load balancer may choose a server per connection, and a pooler per statement.
        if self._options.prepared_statements:
            async with asyncio.timeout(MIN_CONNECT_TIMEOUT):
                connection.server += f" {await connection.fetchval(SERVER)}"

    def _leave_other_hosts(self, connection: Connection) -> None:
        """Replace connections to hosts other than this one. Two hosts may have different users."""
        if any(each.address != connection.address for each in self.pool.connections):
            self.pool.replace()

    @property
    def servers(self) -> Sequence[tuple[str, str]]:
        """The address and the role of each server in use."""
        known = self.executor.servers
        used = {each.address for each in self.pool.connections}
        return [(each, known[each][0]) for each in sorted(used & known.keys())]

    @property
    def problem(self) -> str | None:
        """The reason why "not found" from a standby in use is not trusted, or ``None``."""
        problems = (self.executor.servers[address][1] for address, _ in self.servers)
        return next(filter(None, problems), None)

    @property
    def wanted_role(self) -> str | None:
        """The role of the server that lookups should move to, or ``None`` to stay."""
        roles, used = self._connector.uri_roles, {role for _, role in self.servers}
        # Lookups leave a standby that is behind, for its primary or for another standby.
        if not used or len(roles) == 1:
            return roles[0] if self.problem else None
        role = "primary" if self.problem else roles[0]
        return role if used != {role} else None

    async def observe(self) -> None:
        """Fetch the state of the server in use, unless it is a primary."""
        if self.pool.connections and {role for _, role in self.servers} != {"primary"}:
            await self.fetch(NO_LOOKUP, "")

    async def move(self) -> None:
        """Move lookups to a server of the wanted role. Running lookups end on the old server."""
        role = self.wanted_role
        if role is None:
            return
        avoid = {address for address, _ in self.servers}
        connector = self._new_connector(roles=(role,), avoid=avoid)
        with await connector.connect(self.executor.settings) as connection:
            # Do not move to a standby that is behind: lookups would immediately leave it again.
            if not await self.follows(connection):
                return
        self._connector.last = connection.address
        self.pool.replace()
        await self.fetch(NO_LOOKUP, "")

    async def follows(self, connection: Connection | None = None) -> bool:
        """Wait up to 2 s until the lag of a standby is at most ``max_lag``. Return whether it is.

        Without ``connection``, check the server in use.
        """
        run = self.fetch if connection is None else partial(self.executor.run, connection)
        for _ in range(8):
            if (await run(NO_LOOKUP, "")).reason is None:
                return True
            await asyncio.sleep(self.executor.standbys.settle_time / 4)
        return False

    async def probe(self) -> None:
        """Test the server by a new connection, because the pool may have no free connection."""
        (await self._connector.connect(self.executor.settings)).terminate()
        # A firewall that has dropped one connection has often dropped all idle connections.
        if self._has_hung:
            self._has_hung = False
            self.pool.drop_idle()

    async def fetch(self, sql: str, value: str | list[str]) -> Result:
        """Run a lookup for one or several values. For several, it may raise `TimeoutError`."""
        pool = self.pool  # `open` may replace it meanwhile
        connection = await pool.acquire()
        try:
            return await self.executor.run(connection, sql, value)
        except asyncio.CancelledError:
            # The server or the network hangs. Later lookups on this connection would wait, too.
            self._has_hung = True
            connection.terminate()
            raise
        finally:
            pool.release(connection)
