"""Connections to a database, the choice of a host, and a pool of connections."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from typing import Any, Self

import asyncpg
from asyncpg import TargetServerAttributeNotMatched
from asyncpg.prepared_stmt import PreparedStatement
from pydantic import SecretStr

from idv_postgres.errors import is_full, to_lookup_failed
from idv_postgres.options import Dsn
from tornado_idv import Broken

MIN_CONNECT_TIMEOUT = 1.0
"""Maximum seconds to connect to one host, unless the option ``timeout`` is longer."""
_MAX_PREPARED = 16
"""Maximum number of prepared statements. A statement above this number replaces all others."""


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection without asyncpg's cache of statements. The end of a ``with`` block closes it.

    asyncpg's cache names statements by a counter, so all processes use the same names. Behind a
    pooler, two processes may share a session. One could then run a statement of the other process.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prepared: dict[str, PreparedStatement] = {}
        self.address = self.server = ""
        """The host with its port. ``server`` also identifies the server behind this address."""
        self.standby: object = "unknown"
        """The last `Result.standby`. If it is ``None``, the server is a primary and remains one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    async def prepare(self, query: str, **options: Any) -> PreparedStatement:
        """Prepare a statement under a random name."""
        return await super().prepare(query, name=f"idv_{secrets.token_hex(16)}", **options)

    async def fetch_prepared(self, sql: str, *values: object, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - asyncpg's
        """Run a statement and keep it prepared. After a change of the table, prepare it again."""
        if statement := self._prepared.get(sql):
            try:
                return await statement.fetch(*values, timeout=timeout)
            except (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError):
                pass
        if statement or len(self._prepared) == _MAX_PREPARED:
            self._prepared.clear()
        async with asyncio.timeout(timeout):
            statement = self._prepared[sql] = await self.prepare(sql)
            return await statement.fetch(*values)


@dataclass
class Connector:
    """Opens connections to the first suitable host of a URI.

    The host that was connected last (``last``) is tried first. Then every host is tried with the
    first of the ``roles``, then with the next. If ``avoid`` names hosts, the order of the hosts is
    random, and the named hosts come last.
    """

    dsn: SecretStr
    _: KW_ONLY
    timeout: float
    """Seconds to connect to one host, at least `MIN_CONNECT_TIMEOUT`."""
    roles: Sequence[str] = ()
    """Values of ``target_session_attrs``. By default they are those of the URI."""
    avoid: Collection[str] = ()
    last: str = ""
    uri_roles: Sequence[str] = field(default=(), init=False)
    """The roles of the URI at the last attempt."""

    async def connect(self, settings: Mapping[str, str] | None = None) -> Connection:
        """Connect to the first host that responds in time and has the wanted role."""
        try:
            dsn = Dsn.parse(self.dsn.get_secret_value())  # a file with the URI may have changed
        except ValueError as error:
            raise Broken(f"the dsn cannot be used: {error}") from None
        self.uri_roles = dsn.roles
        roles = self.roles or dsn.roles
        addresses = [*dsn.uris]
        if self.avoid:
            addresses.sort(key=lambda each: (each in self.avoid, random.random()))  # noqa: S311
        # The host in use comes first, even with the last role. `Database.move` leaves it later.
        attempts = [(roles[-1], self.last)] if self.last in addresses else []
        attempts += product(roles, addresses)
        errors: dict[str, Exception] = {}
        for role, address in dict.fromkeys(attempts):
            if not isinstance(errors.get(address), TargetServerAttributeNotMatched | None):
                continue  # this host does not respond
            try:
                # Each host is tried separately: asyncpg has one timeout for a list of hosts.
                connection: Connection = await asyncpg.connect(
                    dsn.uris[address],
                    target_session_attrs=role,
                    timeout=max(self.timeout, MIN_CONNECT_TIMEOUT),
                    server_settings=settings,
                    connection_class=Connection,
                    statement_cache_size=0,
                )
            except Exception as error:  # noqa: BLE001 - each is mapped, or raised
                failure = to_lookup_failed(error)
                if isinstance(failure, Broken):
                    # Errors of the client may contain parts of the URI.
                    is_safe = isinstance(error, asyncpg.PostgresError)
                    raise (error if is_safe else failure) from None
                errors[address] = error
            else:
                connection.address = self.last = address
                return connection
        # A server without a free connection is reported first, and one of another role last.
        raise min(
            errors.values(),
            key=lambda each: (not is_full(each), isinstance(each, TargetServerAttributeNotMatched)),
        )


class Pool:
    """A pool of up to ``size`` connections for lookups. If all are in use, `acquire` waits.

    asyncpg's pool would add 80 µs to a lookup of 40 µs (CPython 3.11), because it creates a task to
    reset each returned connection. After a lookup, nothing needs a reset.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._outdated: set[Connection] = set()
        self._closed = False

    @property
    def connections(self) -> Sequence[Connection]:
        return [each for each in self._open if not each.is_closed()]

    async def fill(self, count: int) -> None:
        for each in await asyncio.gather(*(self.acquire() for _ in range(count))):
            self.release(each)

    async def acquire(self) -> Connection:
        """Return an open connection. Call `release` after its use. Raises errors of asyncpg."""
        await self._slots.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._open_another()
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool. A closed connection is replaced when needed."""
        if connection in self._outdated:
            connection.terminate()
        self._idle.append(connection)
        self._slots.release()

    def drop_idle(self) -> None:
        """Close the connections that are not in use."""
        for connection in self._idle:
            connection.terminate()

    def replace(self) -> None:
        """Replace all current connections. Close each of them when it is not in use."""
        self.drop_idle()
        self._outdated = {*self.connections}

    def terminate(self) -> None:
        """Close every connection immediately. Running lookups fail."""
        self._closed = True
        for connection in self._open:
            connection.terminate()

    async def close(self) -> None:
        """Close all connections. Idle ones first send Terminate, so the server logs no error."""
        idle = [connection.close(timeout=1.0) for connection in self._idle]
        await asyncio.gather(*idle, return_exceptions=True)
        self.terminate()

    async def _open_another(self) -> Connection:
        connection = await self._connect()
        if self._closed:
            connection.terminate()
            raise ConnectionAbortedError
        self._open = {*self.connections, connection}
        return connection
