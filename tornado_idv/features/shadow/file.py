"""The SQLite file with the comparisons of a shadow. Several processes write to it.

The file uses a rollback journal, not a WAL. A ``-wal`` file could outlive its database, and SQLite
would apply it to the next file with the same name (see `idv_sqlite.key_store`).
"""

import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tornado_idv.errors import StartError
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.kit.comparison import Comparison
from tornado_idv.model import Query

_APPLICATION_ID = 0x69647604
"""SQLite's ``application_id`` of these files. The last digit is the version of the schema."""
_BUSY_TIMEOUT = 5.0
_DAY = 86400
_SET_BACK = 60.0
"""If the clock is set back by more than this many seconds, all comparisons are discarded."""
STORED = ("missing", "extra", "unverified", "target_failed", "differs", "match")
"""Results of comparisons, the most severe first. Lookups of one user by nickname and by card number
may have different results. Reports show only the most severe one."""
FAILED = ("unverified", "target_failed")
"""Results without a comparison: a lookup failed, or the user changed during the lookups."""
_MATCH = STORED.index("match")

# The table comparisons has a row per query. `result` is an index into STORED. `text` is the query.
# It is NULL for a match: an operator needs the query only for other results.
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    "CREATE TABLE state (key BLOB, backend TEXT, scope TEXT, since REAL, written REAL)",
    "CREATE TABLE problems (process BLOB PRIMARY KEY, problem TEXT, at REAL)",
    "CREATE TABLE totals (day INTEGER, result TEXT, count INTEGER, PRIMARY KEY (day, result))",
    """CREATE TABLE comparisons (
        query TEXT PRIMARY KEY, user TEXT, result INTEGER, fields TEXT, began REAL, text TEXT
    ) WITHOUT ROWID""",
)
# A newer result, which another process has written, is not replaced. A result from the future is
# replaced: it was written before the clock was set back.
_STORE = """
INSERT INTO comparisons VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (query) DO UPDATE
SET user = excluded.user, result = excluded.result, fields = excluded.fields,
    began = excluded.began, text = excluded.text
WHERE excluded.began >= began OR began > ?7
"""
_COUNT = """
INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (day, result) DO UPDATE
SET count = count + excluded.count
"""
# A problem counts until the process that has it has not written for a minute.
_STATE = """
SELECT since, written, (SELECT max(problem) FROM problems WHERE abs(at - written) < 60) FROM state
"""
# Sorting all rows is slow, so one deletion removes a tenth of them. Matches are deleted first.
_TRIM = f"""
DELETE FROM comparisons WHERE query IN (
    SELECT query FROM comparisons ORDER BY result = {_MATCH} DESC, began
    LIMIT (SELECT iif(count(*) > ?, count(*) / 10, 0) FROM comparisons))
"""  # noqa: S608 - constants
_DIFFERING = f"""
SELECT user, min(result), group_concat(fields), max(began), group_concat(text, char(10))
FROM comparisons GROUP BY user HAVING min(result) <> {_MATCH} ORDER BY min(result), user
"""  # noqa: S608 - constants
_DUE = f"""
SELECT text FROM comparisons WHERE result <> {_MATCH} AND began NOT BETWEEN ? AND ?
ORDER BY random() LIMIT ?
"""  # noqa: S608 - constants


def drop_comparisons(options: BackendOptions) -> None:
    """Drop a shadow's comparisons, because an import changes its users. Raises `StartError`."""
    if options.shadow and options.shadow.state:
        ShadowFile(options.shadow.state, options.name).discard(time.time())


class Recorded(NamedTuple):
    """A comparison for one query. ``began`` is the start of the comparison in Unix time."""

    query: Query
    comparison: Comparison
    began: float


class DifferingUser(NamedTuple):
    """A user with a difference between source and shadow, or without a reliable comparison.

    ``user`` is a keyed hash of the nickname. If no user was found, it is a hash of the query.
    ``queries`` are the compared nicknames and card numbers in plain text. ``compared`` is the Unix
    time of the last comparison.
    """

    user: str
    result: str
    fields: list[str]
    compared: float
    queries: list[str]


class Contents(NamedTuple):
    """The contents of the file: all users compared since the Unix time ``since``.

    ``written`` is the Unix time of the last write by a service. ``problem`` is the reason why the
    service compares nothing, or ``None``. ``matches`` counts users without a difference, ``days``
    counts days with comparisons, and ``totals`` counts comparisons by result.
    """

    since: float
    written: float
    problem: str | None
    days: int
    matches: int
    differing: list[DifferingUser]
    totals: dict[str, int]


class ShadowFile:
    """The file with comparisons of the shadow ``backend``, with at most ``max_rows`` queries.

    Each method opens the file again, because it may have been replaced or removed. All methods
    raise `StartError` if the file cannot be used. `discard` may also raise `OSError`.
    """

    def __init__(self, path: Path, backend: str, max_rows: int = 1_000_000) -> None:
        self.path, self._backend, self._max_rows = path, backend, max_rows
        self._process = secrets.token_bytes(8)

    def write(
        self,
        comparisons: Sequence[Recorded],
        now: float,
        scope: str = "",
        *,
        problem: str | None = None,
        is_complete: bool = True,
    ) -> None:
        """Store the comparisons that began after the last import.

        The file is cleared first in three cases: the ``scope`` (a digest of backend options) has
        changed, some comparisons were lost (not ``is_complete``), or the clock was set back.
        """
        with self._opened(now) as database:
            ((key, since, before),) = database.execute("SELECT key, since, scope FROM state")
            if before != scope or since > now + _SET_BACK or not is_complete:
                _clear(database, now)
                since = now
            database.execute("UPDATE state SET scope = ?, written = ?", [scope, now])
            sql = "INSERT OR REPLACE INTO problems VALUES (?, ?, ?)"
            database.execute(sql, [self._process, problem, now])
            counted = [each for each in comparisons if each.began >= since]
            totals = Counter((each.began // _DAY, each.comparison.result) for each in counted)
            database.executemany(_COUNT, [(*each, count) for each, count in totals.items()])
            for each in counted:
                _store(database, key, each, now)
            if counted:
                database.execute(_TRIM, [self._max_rows])

    def discard(self, now: float, journal: str = "DELETE") -> None:
        """Drop all comparisons, because an import changes the users.

        Later calls of `write` ignore comparisons that began before ``now``. If the file does not
        exist, this method has no effect. A ``journal`` in memory also works on a full disk.
        """
        with suppress(FileNotFoundError):
            self.path.stat()  # `exists` hides other errors, from Python 3.14 on
            with self._opened(now, journal) as database:
                _clear(database, now)

    def due(self, now: float, age: float, count: int) -> list[str]:
        """Return up to ``count`` queries with a mismatch or a failure at least ``age`` s ago.

        The choice is random. In a fixed order, queries that always fail would block all others.
        """
        with self._opened() as database:
            return [text for (text,) in database.execute(_DUE, [now - age, now, count])]

    def read(self) -> Contents:
        """Return the results of all compared users."""
        with self._opened() as database:
            ((since, written, problem),) = database.execute(_STATE)
            ((users,),) = database.execute("SELECT count(DISTINCT user) FROM comparisons")
            sql = "SELECT count(DISTINCT day) FROM totals WHERE result NOT IN (?, ?, ?)"
            ((days,),) = database.execute(sql, [*FAILED, "source_failed"])
            totals = dict(database.execute("SELECT result, sum(count) FROM totals GROUP BY result"))
            differing = []
            for user, place, fields, began, texts in database.execute(_DIFFERING):
                names = sorted(set((fields or "").split(",")) - {""})
                queries = sorted(texts.split("\n"))
                differing.append(DifferingUser(user, STORED[place], names, began, queries))
        return Contents(since, written, problem, days, users - len(differing), differing, totals)

    @contextmanager
    def _opened(
        self, now: float | None = None, journal: str = "DELETE"
    ) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction. An error rolls it back.

        If ``now`` is given, the transaction may write, and a missing file is created.
        """
        try:
            if now is not None and not self.path.exists():
                self.path.touch(0o600)
            self.path.stat()  # raises an error with a reason, unlike SQLite
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            database = sqlite3.connect(uri, timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
            with closing(database):
                database.execute("PRAGMA secure_delete = ON")
                database.execute(f"PRAGMA journal_mode = {journal}")
                database.execute("BEGIN" if now is None else "BEGIN IMMEDIATE")
                is_empty = database.execute("PRAGMA schema_version").fetchone() == (0,)
                if is_empty and now is not None:
                    for statement in _SCHEMA:
                        database.execute(statement)
                    state = [secrets.token_bytes(32), self._backend, None, now, now]
                    database.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", state)
                if database.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                    raise self._error("not a shadow file of this version; name another file")
                ((backend,),) = database.execute("SELECT backend FROM state")
                if backend != self._backend:
                    advice = f"name another file for {self._backend}"
                    raise self._error(f"belongs to the shadow {backend}; {advice}")
                yield database
                database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:  # their messages never contain a query
            if now is None and isinstance(error, FileNotFoundError):
                raise self._error("does not exist: no service has compared anything yet") from None
            reason = error.strerror if isinstance(error, OSError) else error
            raise self._error(f"cannot be used: {reason}") from None

    def _error(self, reason: str) -> StartError:
        return StartError(f"{self.path}: {reason}")


def _clear(database: sqlite3.Connection, now: float) -> None:
    """Discard all comparisons. Later, `write` ignores comparisons that began before ``now``."""
    database.execute("UPDATE state SET since = ?", [now])
    database.execute("DELETE FROM comparisons")
    database.execute("DELETE FROM totals")


def _store(database: sqlite3.Connection, key: bytes, recorded: Recorded, now: float) -> None:
    """Store the result of a query. If neither source nor shadow has the user, remove the query."""
    query, comparison, began = recorded

    def digest(text: str) -> str:
        return blake2b(text.encode(), key=key, digest_size=12).hexdigest()

    result, user = comparison.result, comparison.user
    hashed = digest(query.text)
    if result == "match" and user is None:
        sql = "DELETE FROM comparisons WHERE query = ? AND (began <= ? OR began > ?)"
        database.execute(sql, [hashed, began, now])
    elif result in STORED:
        text = None if result == "match" else query.text
        fields = ",".join(comparison.fields) or None
        of_user = digest(f"@{user.nickname}" if user else query.text)
        database.execute(_STORE, (hashed, of_user, STORED.index(result), fields, began, text, now))
