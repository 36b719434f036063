"""Connections that give unique names to their prepared statements, and their choice of a host."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, Self

import asyncpg
from asyncpg.exceptions import TargetServerAttributeNotMatched
from asyncpg.prepared_stmt import PreparedStatement
from pydantic import SecretStr

from idv_postgres.errors import is_full, to_lookup_failed
from idv_postgres.options import Dsn
from tornado_idv import Broken

MIN_CONNECT_TIMEOUT = 1.0
"""Maximum seconds to connect to one host, unless the option ``timeout`` is longer."""
_OTHER_ROLE = TargetServerAttributeNotMatched()

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


class Connector:
    """Opens connections to the first suitable host of a URI.

    The host that was connected last (``last``) is tried first. Then every host is tried with the
    first of the ``roles``, then with the next. If ``avoid`` names hosts, the order of the hosts is
    random, and the named hosts come last.
    """

    def __init__(
        self,
        dsn: SecretStr,
        *,
        timeout: float,
        roles: Sequence[str] = (),
        avoid: Collection[str] = (),
    ) -> None:
        self._dsn, self._avoid = dsn, avoid
        self._timeout = max(timeout, MIN_CONNECT_TIMEOUT)
        self.roles = self._own_roles = roles
        self.last = ""

    async def connect(self, settings: Mapping[str, str] | None = None) -> Connection:
        """Connect to the first host that responds in time and has the wanted role."""
        try:
            dsn = Dsn.parse(self._dsn.get_secret_value())  # a file with the URI may have changed
        except ValueError as error:
            raise Broken(f"the dsn cannot be used: {error}") from None
        roles = self.roles = self._own_roles or dsn.roles
        addresses = sorted(dsn.uris, key=lambda each: each != self.last)
        if self._avoid:
            addresses.sort(key=lambda each: (each in self._avoid, random.random()))  # noqa: S311
        # The host in use comes first, even with the last role. `Database.move` leaves it later.
        attempts = [(roles[-1], self.last)] if self.last in addresses else []
        attempts += product(roles, addresses)
        errors: dict[str, Exception] = {}
        for role, address in dict.fromkeys(attempts):
            if not isinstance(errors.get(address, _OTHER_ROLE), TargetServerAttributeNotMatched):
                continue  # this host does not respond
            try:
                # Each host is tried separately: asyncpg has one timeout for a list of hosts.
                connection: Connection = await asyncpg.connect(
                    dsn.uris[address],
                    target_session_attrs=role,
                    timeout=self._timeout,
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
