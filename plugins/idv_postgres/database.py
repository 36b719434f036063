"""Connections to one database: the pool for lookups, and single ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product

import asyncpg
from asyncpg.exceptions import TargetServerAttributeNotMatched
from pydantic import SecretStr

from idv_postgres.connection import Connection
from idv_postgres.errors import most_informative, to_lookup_failed
from idv_postgres.lookups import Lookups, inspect
from idv_postgres.options import Dsn, PostgresOptions
from idv_postgres.pool import Pool
from idv_postgres.standby import NO_LOOKUP, Result, Standbys, with_state
from tornado_idv import Broken

_MIN_CONNECT_TIMEOUT = 1.0
"""Seconds for one host; more where ``timeout`` is longer."""
_SERVER_SHARE = 0.9
"""The server stops a query after this fraction of ``timeout``, so that the connection survives."""
_BATCH_SHARE = 1 / 3
"""A query for several values is stopped after this fraction of ``timeout``.

The rest is left to repeat their lookups alone."""
_ROLLBACK_SHARE = 1 / 6
"""A connection that needs more than this fraction of ``timeout`` to roll back is closed."""

_BEGAN = "SELECT pg_catalog.pg_postmaster_start_time()::text"
_TIMELINE = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
  ELSE left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END
"""
_OTHER_ROLE = TargetServerAttributeNotMatched()


class Connector:
    """Makes connections; the host at the address ``last`` responded last and is tried first.

    If some are ``avoided``, these are tried last, and the others in any order. ``roles`` are tried
    in turn, each with every host. A secret that follows its file is read for each connection.
    """

    def __init__(self, dsn: SecretStr, *, timeout: float, roles: Sequence[str] = ()) -> None:
        self._dsn = dsn
        self.roles = self._own_roles = roles
        self._timeout = max(timeout, _MIN_CONNECT_TIMEOUT)
        self.last = ""
        self.avoided: Collection[str] = ()

    async def connect(
        self, server_settings: Mapping[str, str] | None = None, *, in_order: bool = False
    ) -> Connection:
        """Connect to the first host that responds in its time and has the wanted role.

        With ``in_order`` the host that responded last is neither preferred nor changed. asyncpg by
        itself would wait for one that hangs until the time is up for all of them.
        """
        try:
            dsn = Dsn.parse(self._dsn.get_secret_value())
        except ValueError as error:
            raise Broken(f"the dsn cannot be used: {error}") from None
        roles = self.roles = self._own_roles or dsn.roles
        last = "" if in_order else self.last
        addresses = sorted(dsn.uris, key=lambda each: each != last)
        if self.avoided:
            addresses.sort(key=lambda each: (each in self.avoided, random.random()))  # noqa: S311
        attempts = [(roles[-1], last)] if last in addresses else []
        attempts += product(roles, addresses)
        errors: dict[str, Exception] = {}
        for role, address in dict.fromkeys(attempts):
            if not isinstance(errors.get(address, _OTHER_ROLE), TargetServerAttributeNotMatched):
                continue  # one that hangs would do so again
            try:
                connection: Connection = await asyncpg.connect(
                    dsn.uris[address],
                    target_session_attrs=role,
                    timeout=self._timeout,
                    server_settings=server_settings,
                    connection_class=Connection,
                    statement_cache_size=0,
                )
            except Exception as error:  # noqa: BLE001 - each is mapped, or raised
                failure = to_lookup_failed(error)
                if isinstance(failure, Broken):
                    # Only the server's errors do not repeat parts of the URI.
                    is_safe = isinstance(error, asyncpg.PostgresError)
                    raise (error if is_safe else failure) from None
                errors[address] = error
            else:
                connection.address = address
                self.last = self.last if in_order else address
                return connection
        raise most_informative([*errors.values()])


class Database:
    """The pool of connections for lookups; everything raises whatever asyncpg raises."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._is_prepared = options.prepared_statements
        self._limit = max(1, int(options.timeout * _SERVER_SHARE * 1000))
        self._batch_timeout = options.timeout * _BATCH_SHARE
        self._rollback_timeout = options.timeout * _ROLLBACK_SHARE
        self._settings: dict[str, str] = {}
        if options.prepared_statements:
            self._settings = {
                "application_name": "tornado-idv",
                "statement_timeout": str(self._limit),
                "row_security": "off",
                # Otherwise the snapshot is older than the wait for the lock of a TRUNCATE, and a
                # table that was filled again is empty in it.
                "default_transaction_isolation": "read committed",
            }
        self._connector = Connector(options.dsn, timeout=options.timeout)
        self._connect = partial(self._connector.connect, server_settings=self._settings)
        self.standbys = Standbys(options.max_lag)
        self._states: dict[str, tuple[str, str | None]] = {}
        """The role at each address, and why "not found" does not count there, as seen last."""
        self._failed = ""
        """The address where a standby did not follow when it should have been used, if any."""
        self.pool = Pool(self._connect, options.pool.max)
        self._lookups = Lookups({})
        self._timeline = ""
        """Of the primary that was inspected last: a promotion begins a later one."""
        self._begin = ""
        self._was_not_answered = False

    async def open(self) -> Lookups:
        """Open the pool and validate the table, in place of an earlier pool."""
        self.pool.terminate()
        lookups = await self.inspect(in_order=True)
        connect = self._connect
        if self._settings and lookups.search_path:
            settings = {**self._settings, "search_path": lookups.search_path}
            connect = partial(connect, server_settings=settings)
        pool = Pool(partial(self._connect_for_pool, connect), self._options.pool.max)
        try:
            await pool.fill(self._options.pool.min)
        except BaseException:
            pool.terminate()
            raise
        self.pool = pool
        return lookups

    async def inspect(self, *, in_order: bool = False) -> Lookups:
        """Validate the table by a separate connection, which has the settings of the role.

        With ``in_order`` it leads to the first server that is well, which is used from then on, but
        not back to a primary of before a failover. Closes all other connections if that raises
        `Broken`: no lookup may find a user, or none, in a table that is not to be served.
        """
        is_well = all(reason is None for _, reason in self._states.values())
        last = self._connector.last
        connection = await self._connect(in_order=in_order and is_well)
        try:
            timeline = str(await connection.fetchval(_TIMELINE)) if self._is_prepared else ""
            if in_order and last not in ("", connection.address) and timeline < self._timeline:
                return await self.inspect()
            self._connector.last, self._timeline = connection.address, timeline
            self._lookups = await self._inspect(connection)
            self._use_alone(connection)
            await connection.close(timeout=_MIN_CONNECT_TIMEOUT)
        except Broken:
            self.pool.terminate()
            raise
        finally:
            connection.terminate()
        return self._lookups

    async def _connect_for_pool(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        connection = await connect()
        connection.server = connection.address
        if self._is_prepared:  # behind a pooler that may be another one for each statement
            try:
                async with asyncio.timeout(_MIN_CONNECT_TIMEOUT):
                    began = await connection.fetchval(_BEGAN)
            except BaseException:
                connection.terminate()
                raise
            connection.server += f" {began}"
        self._use_alone(connection)
        return connection

    def _use_alone(self, connection: Connection) -> None:
        """Close connections to other hosts, which may differ, as soon as they are not in use."""
        if any(each.address != connection.address for each in self.pool.connections):
            self.pool.replace()

    async def _inspect(self, connection: Connection) -> Lookups:
        async with connection.transaction(readonly=True):
            if not self._is_prepared:
                await connection.execute("SET LOCAL row_security = off")
            elif await connection.fetchval("SHOW row_security") != "off":
                raise Broken(
                    "a pooler ignores the startup parameter row_security; remove it from "
                    "ignore_startup_parameters and write prepared_statements: false"
                )
            lookups = await inspect(connection, self._options, self._lookups)
        path = lookups.search_path
        self._begin = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {self._limit}; "
            f"SET LOCAL row_security = off{path and f'; SET LOCAL search_path TO {path}'}"
        )
        return lookups

    @property
    def servers(self) -> Sequence[tuple[str, str]]:
        """The address and the role of each server in use."""
        used = {each.address for each in self.pool.connections}
        return [(each, self._states[each][0]) for each in sorted(used & self._states.keys())]

    @property
    def problem(self) -> str | None:
        """Why "not found" of a standby in use does not count."""
        reasons = (self._states[address][1] for address, _ in self.servers)
        return next(filter(None, reasons), None)

    @property
    def wanted_role(self) -> str | None:
        """The role of a server that should be used instead, if another one should.

        A standby that does not follow its primary is left for that, or for another standby.
        """
        roles, used = self._connector.roles, {role for _, role in self.servers}
        if not used or len(roles) == 1:
            return roles[0] if self.problem else None
        role = "primary" if used == {"standby"} and self.problem else roles[0]
        return role if used != {role} else None

    async def observe(self) -> None:
        """Fetch the state of a server in use that is not known as a primary."""
        if self.pool.connections and {role for _, role in self.servers} != {"primary"}:
            await self.fetch(NO_LOOKUP, "")

    async def settle(self) -> None:
        """Wait until it is known whether a standby in use follows its primary."""
        await self._follows(partial(self.fetch, NO_LOOKUP, ""))

    async def move(self) -> None:
        """Use a server of the wanted role from now on, if there is one; running lookups go on."""
        role = self.wanted_role
        if role is None:
            return
        options = self._options
        connector = Connector(options.dsn, timeout=options.timeout, roles=(role,))
        connector.avoided = {self._failed, *(address for address, _ in self.servers)}
        connection = await connector.connect(self._settings)
        try:
            fetch = partial(self._fetch_pinned, connection, NO_LOOKUP, "", None, may_repeat=False)
            if role != "primary" and not await self._follows(fetch):
                self._failed = connection.address
                return
        finally:
            connection.terminate()
        self._connector.last, self._failed = connection.address, ""
        self.pool.replace()
        await self.fetch(NO_LOOKUP, "")

    async def _follows(self, fetch: Callable[[], Awaitable[Result]]) -> bool:
        for _ in range(8):
            if (await fetch()).reason is None:
                return True
            await asyncio.sleep(self.standbys.settle_time / 4)
        return False

    async def probe(self) -> None:
        """Connect once beside the pool, all connections of which may be in use.

        If a lookup was not answered, the connections that are not in use are replaced: where a
        firewall has forgotten one, it has often forgotten all.
        """
        connection = await self._connect()
        connection.terminate()
        if self._was_not_answered:
            self._was_not_answered = False
            self.pool.drop_idle()

    async def fetch(self, sql: str, value: str | list[str]) -> Result:
        """Run a lookup, or one for several values, which may raise `TimeoutError`.

        A lookup that calls a function is repeated if it finds nothing: a STABLE function reads by
        the snapshot of the query, which is older than the end of a TRUNCATE that the function
        waits for. The second query has a snapshot from after all locks that the first one took.

        One that is cancelled closes its connection at once: the server, or the way to it, hangs
        then, and to return the connection to the pool would mean to wait for a response.
        """
        pool = self.pool
        connection = await pool.acquire()
        # Of a batch some rows may be missing.
        is_batch = isinstance(value, list)
        limit = self._batch_timeout if is_batch else None
        may_repeat = sql in self._lookups.repeated
        try:
            if self._is_prepared:
                result = await self._query(connection, sql, value, limit)
                if not may_repeat or (result.rows and not is_batch):
                    return result
            return await self._fetch_pinned(connection, sql, value, limit, may_repeat=may_repeat)
        except asyncio.CancelledError:
            self._was_not_answered = True
            connection.terminate()
            raise
        finally:
            pool.release(connection)

    async def _query(
        self, connection: Connection, sql: str, value: str | list[str], limit: float | None
    ) -> Result:
        """Run a statement, with the state of a standby if needed; again if only that is new enough.

        Behind a pooler each statement may be run by another server.
        """
        fetch = connection.fetch_prepared if self._is_prepared else connection.fetch
        is_certain = connection.is_primary or self.standbys.is_certain(connection.standby)
        if self._is_prepared and is_certain:
            rows = await fetch(sql, value, timeout=limit)
            return Result(rows, address=connection.address, origin=connection.server)
        for _ in range(2):
            start = self.standbys.start()
            statement = with_state(sql, is_batch=isinstance(value, list))
            rows = await fetch(statement, value, timeout=limit)
            result = self.standbys.finish(start, rows)
            if not result.may_repeat:
                break
        connection.standby, connection.is_primary = result.server, result.server is None
        reason = result.reason and f"{connection.address} is a standby that {result.reason}"
        self._states[connection.address] = "primary" if connection.is_primary else "standby", reason
        return result._replace(reason=reason, address=connection.address, origin=connection.server)

    async def _fetch_pinned(
        self,
        connection: Connection,
        sql: str,
        value: str | list[str],
        limit: float | None,
        *,
        may_repeat: bool,
    ) -> Result:
        """Run a lookup in a transaction.

        A pooler in transaction mode may use another session for each: so statement, value and time
        limit belong to one, and nothing of them is left in the session.
        """
        try:
            await connection.execute(self._begin)
            result = await self._query(connection, sql, value, limit)
            if may_repeat and (limit or not result.rows):
                result = await self._query(connection, sql, value, limit)
            await connection.execute("COMMIT")
        except Exception:
            try:
                # After a timeout this waits until the server has stopped the statement.
                async with asyncio.timeout(self._rollback_timeout):
                    await connection.execute("ROLLBACK")
            except Exception:  # noqa: BLE001 - the connection may be lost
                connection.terminate()
            raise
        return result
