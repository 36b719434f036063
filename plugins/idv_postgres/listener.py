"""The listener for notifications of the database (LISTEN and NOTIFY). It purges cached answers."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import asyncpg

from idv_postgres.connection import Connection, Connector
from idv_postgres.database import Database
from idv_postgres.errors import to_lookup_failed
from idv_postgres.options import PostgresOptions
from idv_postgres.relation import TREE
from tornado_idv import ByCard, ByNickname, Query, Unavailable

_log = logging.getLogger(__name__)
_NAMED = """
SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = (parse_ident($1))[1]::name AND c.relname = (parse_ident($1))[2]::name
"""
_FILES = f"""{TREE.format(roots=_NAMED)}
SELECT array_agg(ARRAY[oid, relfilenode] ORDER BY oid), pg_current_wal_insert_lsn()::text
FROM tree JOIN pg_class USING (oid)
"""  # noqa: S608 - constants
_MAX_USERS = 100
"""Maximum number of changed users to purge one by one. Above it, all users are purged."""


class Listener:
    """Listens on the channel by a separate connection, and connects again after a loss.

    ``purge`` is called with a query for each changed user, or without arguments for all users. All
    users are purged after each new connection, because changes before it are unknown. They are also
    purged when a storage file (``relfilenode``) of the table changes, because no trigger fires for
    an exchange of tables, nor for the TRUNCATE or DETACH of a partition.
    """

    check_interval: ClassVar[float] = 1.0
    """Seconds between two checks of the connection, and the timeout of each check."""
    pause: ClassVar[float] = 1.0
    """Seconds between two attempts to connect."""
    batch_interval: ClassVar[float] = 0.25
    """Seconds to collect changes for one purge, because each purge drops all cached "not found"."""

    def __init__(
        self, options: PostgresOptions, database: Database, purge: Callable[..., None]
    ) -> None:
        self._name, self._folds = options.name, options.folds_nicknames
        self._channel = options.channel
        self._database, self._purge = database, purge
        self._require = database.executor.standbys.require
        self._follows_lookups = options.primary_dsn is options.dsn
        # A standby cannot LISTEN.
        self._connector = Connector(options.primary_dsn, timeout=options.timeout, roles=["primary"])
        self._changed: set[str] = set()
        self._has_purged = asyncio.Event()
        """Set by a purge of notified changes. `_listen` clears it, and reads the WAL position."""
        self._last_reason = ""
        self.session: str | None = None

    async def run(self) -> None:
        """Listen until this task is cancelled."""
        while True:
            try:
                with await self._connector.connect() as connection:
                    await self._listen(connection)
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                reason = to_lookup_failed(error, with_message=True).reason
                if reason != self._last_reason:
                    where = f"backend {self._name}: notifications of changes are interrupted"
                    _log.warning("%s: %s; trying again every %g s", where, reason, self.pause)
                self._last_reason = reason
            await asyncio.sleep(self.pause)

    async def _listen(self, connection: Connection) -> None:
        """Purge changed users until the connection is lost, or lookups use another primary."""
        async with asyncio.timeout(self.check_interval):
            await connection.add_listener(self._channel, self._receive)
            files, position = await self._read_files(connection)
        self._require(position)
        self.session = secrets.token_hex()
        self._purge()
        if self._last_reason:
            _log.info("backend %s: notifications of changes are received again", self._name)
            self._last_reason = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.check_interval):
                    await self._has_purged.wait()
            before, has_purged = files, self._has_purged.is_set()
            self._has_purged.clear()
            for address, role in self._database.servers if self._follows_lookups else ():
                if role == "primary" and address != connection.address:
                    self._connector.last = address
                    raise Unavailable("lookups use another server")
            async with asyncio.timeout(self.check_interval):
                files, position = await self._read_files(connection)
            # If there was another purge meanwhile, its changes may have a later position.
            if (has_purged or files != before) and not self._has_purged.is_set():
                self._require(position)
            if files != before:
                self._purge()

    async def _read_files(self, connection: Connection) -> tuple[object, str]:
        """Return the storage files of the relations that lookups read, and the WAL position."""
        relation = self._database.executor.lookups.relation
        files, position = await connection.fetchrow(_FILES, relation and relation.sql)
        return files, position

    def _receive(
        self, _connection: asyncpg.Connection, _pid: int, _channel: str, payload: str
    ) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_later(self.batch_interval, self._purge_changed)
        self._changed.add(payload.removeprefix("@"))  # as nicknames are written in requests

    def _purge_changed(self) -> None:
        changed, self._changed = self._changed, set()
        # Until the position of these changes is known, results of standbys are not cached.
        self._require(None)
        self._has_purged.set()
        if len(changed) > _MAX_USERS or changed & {"", "*"}:
            self._purge()
        else:
            self._purge(*map(self._query, changed))

    def _query(self, payload: str) -> Query:
        """Return the query for a NOTIFY payload: a nickname, or ``card:`` and a card number."""
        if payload.startswith("card:"):
            return ByCard(payload.removeprefix("card:"))
        # As in every query, only the case of ASCII letters is folded.
        return ByNickname(payload.lower() if self._folds and payload.isascii() else payload)
