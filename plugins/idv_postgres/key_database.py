"""The connection of a key store: a synchronous interface to asyncpg.

A private event loop runs during each statement. Commands have no other event loop, and the service
reads the key store in a thread.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from pydantic import SecretStr

from idv_postgres.connection import Connector
from idv_postgres.errors import to_lookup_failed
from idv_postgres.options import Dsn
from tornado_idv import KeyStoreError, MissingKeyStoreError, UncertainChangeError

_TIMEOUT = 3.0
"""Maximum seconds for a statement, in addition to the wait for a lock.

After a failover from a server that hangs, changes of keys may take effect only after this time."""
_BATCH_TIMEOUT = 10.0
"""Maximum seconds for a statement with many rows."""
_PING_TIMEOUT = 1.0
"""Maximum seconds for the response to a test of an open connection, before it is replaced."""
_CONNECT_TIMEOUT = 2.0
"""Maximum seconds to connect to one host."""
_SETTINGS = {
    "application_name": "tornado-idv keys",
    "search_path": "idv_keys",
    # With "on", a policy could hide the row of a valid key, and the key would be rejected. With
    # "off", the query fails instead.
    "row_security": "off",
    # A client that is cut off must not block other writers.
    "idle_in_transaction_session_timeout": "60s",
}
# This repeats a setting from above, because a pooler may ignore the settings of a session.
_ALL_ROWS = "SET LOCAL row_security = off"
_STARTED = "SELECT pg_postmaster_start_time()"
_REASONS = {
    "42501": (
        "the user of auth.store lacks a permission, or row-level security hides rows from it; "
        "docs/guide/keys.md lists what to GRANT"
    ),
    "55P03": "the key store is locked by another process",
}
_LOCK = 0x6964766B
"""The number of the advisory lock for the creation of the tables: ``idvk`` in ASCII."""
_VERSION = 1
# Triggers set the revision, because an operator may change rows without our commands, also with
# session_replication_role (ALWAYS). They set it once per transaction: more row versions are slower.
_TABLES = """
CREATE TABLE store (version integer NOT NULL, revision text NOT NULL);
INSERT INTO store VALUES (1, gen_random_uuid());
CREATE TABLE keys (
    id text COLLATE "C" PRIMARY KEY,
    created double precision NOT NULL,
    owner text NOT NULL,
    scopes text NOT NULL,
    not_before double precision,
    expires double precision,
    requests text,
    misses text,
    note text NOT NULL,
    disabled boolean NOT NULL,
    revoked double precision
);
CREATE TABLE tokens (
    digest bytea PRIMARY KEY,
    id text COLLATE "C" NOT NULL REFERENCES keys,
    created double precision NOT NULL,
    expires double precision
);
CREATE INDEX tokens_id ON tokens (id);
CREATE TABLE last_used (id text COLLATE "C" PRIMARY KEY, time double precision NOT NULL);
CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE idv_keys.store SET revision = gen_random_uuid()
        WHERE xmin <> pg_current_xact_id()::xid;
    RETURN NULL;
END $$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON keys
  FOR EACH STATEMENT EXECUTE FUNCTION changed(); ALTER TABLE keys ENABLE ALWAYS TRIGGER changed;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tokens
  FOR EACH STATEMENT EXECUTE FUNCTION changed(); ALTER TABLE tokens ENABLE ALWAYS TRIGGER changed;
"""
# A restore creates the triggers last. Until then, keys may be missing. Without the name of the
# schema, a missing permission would look like a missing table.
_CHECK = """
SELECT version, (SELECT count(*) = 2 FROM pg_trigger WHERE tgname = 'changed' AND tgenabled <> 'D'
  AND tgrelid IN ('idv_keys.keys'::regclass, 'idv_keys.tokens'::regclass)) FROM idv_keys.store
"""


class KeyDatabase:
    """An open connection to a key store. It implements the protocol `KeyDatabase` of `tornado_idv`.

    A change waits up to ``busy_timeout`` seconds for other changes. Methods raise `KeyStoreError`.
    """

    def __init__(self, dsn: SecretStr, name: str, last: str = "") -> None:
        self.busy_timeout, self.name, self._dsn = 0.0, name, dsn
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        # Without `last`, the first host may be the primary from before a failover.
        self.connector = Connector(dsn, timeout=_CONNECT_TIMEOUT, roles=("primary",), last=last)
        try:
            self._connection = self._run(self.connector.connect(_SETTINGS))
        except BaseException:
            self._runner.close()
            raise

    def responds(self) -> bool:
        """Return whether the server responds. It may hang or be cut off from the network."""
        with suppress(KeyStoreError):
            self._run(self._connection.execute("SELECT", timeout=_PING_TIMEOUT))
            return True
        return False

    def execute(self, sql: str, values: Sequence[object] = ()) -> Iterable[Sequence[Any]]:
        """Run a statement that has ``?`` in place of each value, and return its rows."""
        return list(self._run(self._connection.fetch(_numbered(sql), *values, timeout=_TIMEOUT)))

    def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> object:
        return self._run(self._connection.executemany(_numbered(sql), rows, timeout=_BATCH_TIMEOUT))

    def changed_rows(
        self, sql: str, before: dict[bytes, tuple[Any, ...]] | None
    ) -> tuple[set[str] | None, Iterable[Sequence[Any]], dict[bytes, tuple[Any, ...]]]:
        """Run a query, and compare its rows with ``before``, the rows of an earlier call by digest.

        Return the changed ids (``None`` for all), their rows, and all rows by digest.
        """
        now = {row[1]: tuple(row) for row in self.execute(sql)}
        if before is None:
            return None, now.values(), now
        changed = {row[0] for _, row in now.items() ^ before.items()}
        return changed, [row for row in now.values() if row[0] in changed], now

    def script(self, sql: str) -> None:
        """Run statements without values."""
        self._run(self._connection.execute(sql, timeout=self.busy_timeout + _TIMEOUT))

    @contextmanager
    def writing(self, lock: str = "SELECT revision FROM store FOR UPDATE") -> Iterator[None]:
        """Run a block as one transaction. The SQL statement ``lock`` excludes other writers.

        Blocks may be nested. Raises `UncertainChangeError` if the commit fails.
        """
        if self._connection.is_in_transaction():
            yield
            return
        milliseconds = max(1, int(self.busy_timeout * 1000))
        try:
            # In other isolation levels, one of two writers would fail instead of waiting.
            self.script(
                f"BEGIN ISOLATION LEVEL READ COMMITTED; {_ALL_ROWS}; "
                f"SET LOCAL lock_timeout = {milliseconds}; {lock}"
            )
            yield
        except BaseException:
            with suppress(KeyStoreError):
                self.script("ROLLBACK")
            raise
        try:
            self.script("COMMIT")
        except KeyStoreError as error:
            raise UncertainChangeError(
                f"{error}; whether the change was committed could not be determined; see "
                "tornado-idv keys list, or keys show ID"
            ) from None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run a block in which all reads see the same snapshot."""
        # The lock precedes the snapshot: a snapshot from before the end of a TRUNCATE has no rows.
        self.script(
            f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_ALL_ROWS}; "
            "LOCK TABLE idv_keys.keys, idv_keys.tokens IN ACCESS SHARE MODE"
        )
        try:
            self.check_schema()  # again: a restore may have begun since the connection was checked
            yield
        finally:
            self.script("COMMIT")

    def check_schema(self) -> None:
        """Raise `KeyStoreError` for another version of the schema, or without its triggers."""
        rows = list(self.execute(_CHECK))
        version, has_triggers = rows[0] if len(rows) == 1 else (None, False)
        if version is None:
            problem = "is damaged; restore it from a backup"
        elif version != _VERSION:
            supported = f"but this tornado-idv supports only version {_VERSION}"
            problem = f"has schema version {version}, {supported}"
        elif not has_triggers:
            problem = "has a missing or disabled trigger: services would not notice changes"
        else:
            return
        raise KeyStoreError(f"{self.name}: the key store {problem}")

    def create(self) -> bool:
        """Create the tables if there are none. Return whether they were created."""
        with self.writing(f"SELECT pg_advisory_xact_lock({_LOCK})"):
            ((schema, store),) = self.execute(
                "SELECT to_regnamespace('idv_keys'), to_regclass('idv_keys.store')"
            )
            if store is None:
                self.script(_TABLES if schema else f"CREATE SCHEMA idv_keys; {_TABLES}")
            return store is None

    def primaries(self, timeout: float) -> Sequence[str]:
        """Return the address and start time of each primary that the hosts of the URI lead to.

        The start time identifies a server, because its address may move in a failover.
        """
        ((own,),) = self.execute(_STARTED)
        found = {own: self._connection.address}

        async def look(uri: str) -> None:
            connector = Connector(SecretStr(uri), timeout=timeout, roles=("primary",))
            with suppress(Exception):  # the host does not respond, or is a standby
                async with asyncio.timeout(timeout):
                    with await connector.connect() as connection:
                        found.setdefault(await connection.fetchval(_STARTED), connection.address)

        async def look_at_all() -> None:
            uris = Dsn.parse(self._dsn.get_secret_value()).uris.values()
            await asyncio.gather(*map(look, uris))

        self._run(look_at_all())
        return [f"{name} (started at {started:%H:%M:%S} UTC)" for started, name in found.items()]

    def close(self) -> None:
        """Close the connection immediately. The server rolls back an open transaction."""
        self._connection.terminate()
        self._run(asyncio.sleep(0))  # the loop closes the socket
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._runner.run(work)
        except Exception as error:  # noqa: BLE001 - each is mapped
            state = str(getattr(error, "sqlstate", ""))
            if state in {"3F000", "42P01"}:  # no such schema or table
                raise MissingKeyStoreError(
                    f"{self.name}: there is no key store in this database; restore it, or create "
                    "the first one with tornado-idv keys issue ID --create"
                ) from None
            # The message of the server may contain a value.
            reason = _REASONS.get(state) or to_lookup_failed(error).reason
            raise KeyStoreError(f"{self.name}: {reason}") from None


def _numbered(sql: str) -> str:
    """Return a statement with ``$1``, ``$2`` and so on in place of each ``?``."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
