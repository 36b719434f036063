"""Purge cached answers when the database notifies of a change (LISTEN and NOTIFY)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar

import asyncpg

from idv_postgres.database import Connector
from idv_postgres.errors import to_lookup_failed
from idv_postgres.options import NotifyOptions, PostgresOptions
from idv_postgres.relation import TREE, Relation
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
"""Users in one batch that are purged one by one; of more everything is purged."""


class Listener:
    """A connection of its own, which listens on the channel and is made again when it is lost.

    ``purge`` is called with queries for the users that changed, or without any for all users:
    also after each time the connection was made, since what changed before is not known, and when
    the files of ``relation()`` are others, since TRUNCATE or DETACH of a partition and an exchange
    of tables fire no trigger. ``require`` is called with the position in the WAL of what is purged,
    and with ``None`` as long as it is not known. ``servers`` are those of lookups: if they use
    another primary of the same dsn, that is listened to.
    """

    check_interval: ClassVar[float] = 1.0
    """Seconds between two checks of the connection, and that each may take."""
    pause: ClassVar[float] = 1.0
    """Seconds between two attempts to connect."""
    batch_interval: ClassVar[float] = 0.25
    """Seconds for which changes are collected, because each purge drops every "not found"."""

    def __init__(
        self,
        options: PostgresOptions,
        purge: Callable[..., None],
        relation: Callable[[], Relation | None],
        require: Callable[[str | None], None],
        servers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self._name, self._purge = options.name, purge
        self._channel = (options.notify or NotifyOptions()).channel
        self._relation, self._require = relation, require
        self._servers = servers if options.primary_dsn is options.dsn else tuple
        self._purged = asyncio.Event()
        self._folds = options.folds_nicknames
        # A standby cannot LISTEN.
        self._connector = Connector(
            options.primary_dsn, timeout=options.timeout, roles=("primary",)
        )
        self._changed: set[str] = set()
        self._last_reason = ""
        self.session: str | None = None

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                connection = await self._connector.connect()
                try:
                    async with asyncio.timeout(self.check_interval):
                        await connection.add_listener(self._channel, self._receive)
                        files, position = await self._read_files(connection)
                    self._require(position)
                    self.session = secrets.token_hex()
                    self._purge()
                    if self._last_reason:
                        _log.info(
                            "backend %s: notifications of changes are received again", self._name
                        )
                        self._last_reason = ""
                    while True:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(self.check_interval):
                                await self._purged.wait()
                        before, has_purged = files, self._purged.is_set()
                        self._purged.clear()
                        for address, role in self._servers():
                            if role == "primary" and address != connection.address:
                                self._connector.last = address
                                raise Unavailable("lookups use another server")
                        async with asyncio.timeout(self.check_interval):
                            files, position = await self._read_files(connection)
                        if (has_purged or files != before) and not self._purged.is_set():
                            self._require(position)
                        if files != before:
                            self._purge()
                finally:
                    connection.terminate()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                reason = to_lookup_failed(error, with_message=True).reason
                if reason != self._last_reason:
                    where = f"backend {self._name}: notifications of changes are interrupted"
                    _log.warning("%s: %s; trying again every %g s", where, reason, self.pause)
                self._last_reason = reason
            await asyncio.sleep(self.pause)

    async def _read_files(self, connection: asyncpg.Connection) -> tuple[object, str]:
        """Return the relations that are read, with their files, and the position in the WAL."""
        relation = self._relation()
        files, position = await connection.fetchrow(_FILES, relation and relation.sql)
        return files, position

    def _receive(
        self, _connection: asyncpg.Connection, _pid: int, _channel: str, payload: str
    ) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_later(self.batch_interval, self._purge_changed)
        self._changed.add(payload)

    def _purge_changed(self) -> None:
        changed, self._changed = self._changed, set()
        self._require(None)
        self._purged.set()
        if len(changed) > _MAX_USERS or changed & {"", "*"}:
            self._purge()
        else:
            self._purge(*map(self._query, changed))

    def _query(self, payload: str) -> Query:
        """Return the query that a payload names: a nickname, or ``card:`` and a card number."""
        if payload.startswith("card:"):
            return ByCard(payload.removeprefix("card:"))
        # Only ASCII letters have another case, as in every query.
        return ByNickname(payload.lower() if self._folds and payload.isascii() else payload)
