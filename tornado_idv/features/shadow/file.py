"""The file with the comparisons of a shadow: a SQLite database with a rollback journal.

Several processes write it. A ``-wal`` file would outlive them, and apply to another file of that
name (see `tornado_idv.keys.store_file`).
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tornado_idv.errors import StartError
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.model import Query

_APPLICATION_ID = 0x69647603
"""Marks a database as such a file, in version 3."""
_BUSY_TIMEOUT = 5.0
_DAY = 86400
_SET_BACK = 60.0
"""Seconds by which a clock that was set back is noticed."""
STORED = ("missing", "extra", "unverified", "target_failed", "differs", "match")
"""The results that users have, the most severe first; of a user's queries that one counts."""
FAILED = ("unverified", "target_failed")
"""Results of users who were not compared in fact."""
_MATCH = STORED.index("match")

# A row of comparisons is one query, with the place of its result in STORED. Its text is there for
# those that an operator has to look at.
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    """CREATE TABLE state (
        key BLOB, backend TEXT, scope TEXT, since REAL, written REAL, problem TEXT)""",
    "CREATE TABLE totals (day INTEGER, result TEXT, count INTEGER, PRIMARY KEY (day, result))",
    """CREATE TABLE comparisons (
        query TEXT PRIMARY KEY, user TEXT, result INTEGER, fields TEXT, began REAL, text TEXT
    ) WITHOUT ROWID""",
)
# Of several processes, one may write an older result after a newer one. One of a time to come is of
# a clock that was set back.
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
# A tenth at once, since to sort them takes long.
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
    """Drop the comparisons of a backend whose users change; raises `StartError`."""
    if options.shadow and options.shadow.state:
        ShadowFile(options.shadow.state, options.name).discard(time.time())


class Recorded(NamedTuple):
    """A comparison, and when it began, in Unix time."""

    query: Query
    comparison: Comparison
    began: float


class DifferingUser(NamedTuple):
    """A user who is not known to be the same in both sources.

    ``user`` is a hash; ``queries`` are what was looked up, in full. Times are in Unix time.
    """

    user: str
    result: str
    fields: list[str]
    compared: float
    queries: list[str]


class Contents(NamedTuple):
    """Users who were compared since the last import, or since the file was created.

    A service has ``written`` it last, and its ``problem`` is why it compares nothing. ``matches``
    is the number of the users who do not differ. ``totals`` are the numbers of comparisons by
    result. Times are in Unix time.
    """

    since: float
    written: float
    problem: str | None
    days: int
    matches: int
    differing: list[DifferingUser]
    totals: dict[str, int]


class ShadowFile:
    """The comparisons of the shadow ``backend`` in a file, of at most ``max_rows`` queries.

    Each method opens the file, which may have been replaced or removed. They raise `StartError`.
    """

    def __init__(self, path: Path, backend: str, max_rows: int = 1_000_000) -> None:
        self.path = path
        self._backend = backend
        self._max_rows = max_rows

    def write(
        self,
        comparisons: Sequence[Recorded],
        now: float,
        scope: str = "",
        *,
        problem: str | None = None,
        is_complete: bool = True,
    ) -> None:
        """Store comparisons, except for those that began before an import.

        They begin again with another ``scope`` than before, if some of them are missing, and if
        the clock was set back.
        """
        with self._opened(now) as database:
            ((key, since, before),) = database.execute("SELECT key, since, scope FROM state")
            if before not in (None, scope) or since > now + _SET_BACK or not is_complete:
                _clear(database, now)
                since = now
            sql = "UPDATE state SET scope = ?, written = ?, problem = ?"
            database.execute(sql, [scope, now, problem])
            counted = [each for each in comparisons if each.began >= since]
            totals = Counter((each.began // _DAY, each.comparison.result) for each in counted)
            database.executemany(_COUNT, [(*each, count) for each, count in totals.items()])
            for each in counted:
                _store(database, key, each, now)
            if counted:
                database.execute(_TRIM, [self._max_rows])

    def discard(self, now: float) -> None:
        """Drop all comparisons, and those that began before this import but are not written yet.

        Without a file, no service has compared anything.
        """
        try:
            self.path.stat()  # `exists` hides other errors, from Python 3.14 on
        except FileNotFoundError:
            return
        with self._opened(now) as database:
            _clear(database, now)

    def due(self, now: float, age: float, count: int) -> list[str]:
        """Return the texts of queries that did not match, and were compared ``age`` s ago.

        They are chosen at random: some may fail each time.
        """
        with self._opened() as database:
            rows = database.execute(_DUE, [now - age, now, count])
            return [text for (text,) in rows]

    def read(self) -> Contents:
        """Return the users who were compared."""
        with self._opened() as database:
            sql = "SELECT since, written, problem FROM state"
            ((since, written, problem),) = database.execute(sql)
            ((users,),) = database.execute("SELECT count(DISTINCT user) FROM comparisons")
            days = "SELECT count(DISTINCT day) FROM totals WHERE result NOT IN (?, ?, ?)"
            ((day_count,),) = database.execute(days, [*FAILED, "source_failed"])
            rows = database.execute("SELECT result, sum(count) FROM totals GROUP BY result")
            totals = dict(rows.fetchall())
            differing = []
            for user, place, fields, began, texts in database.execute(_DIFFERING):
                names = sorted(set((fields or "").split(",")) - {""})
                queries = sorted(texts.split("\n"))
                differing.append(DifferingUser(user, STORED[place], names, began, queries))
        return Contents(
            since, written, problem, day_count, users - len(differing), differing, totals
        )

    @contextmanager
    def _opened(self, now: float | None = None) -> Iterator[sqlite3.Connection]:
        """Begin a transaction, which is rolled back if it fails.

        With ``now`` it may write, and the file is created if there is none.
        """
        try:
            if now is not None and not self.path.exists():
                self.path.touch(0o600)
            self.path.stat()  # SQLite does not say why it cannot open a file
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            database = sqlite3.connect(uri, timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
            with closing(database):
                database.execute("PRAGMA secure_delete = ON")
                database.execute("BEGIN" if now is None else "BEGIN IMMEDIATE")
                is_empty = database.execute("PRAGMA schema_version").fetchone() == (0,)
                if is_empty and now is not None:
                    for statement in _SCHEMA:
                        database.execute(statement)
                    state = [secrets.token_bytes(32), self._backend, None, now, now, None]
                    database.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?)", state)
                if database.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                    raise self._error("no file of a shadow, or of another version; name another")
                ((backend,),) = database.execute("SELECT backend FROM state")
                if backend != self._backend:
                    raise self._error(f"of the shadow {backend}; name another for {self._backend}")
                yield database
                database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:  # whose texts have no values
            if now is None and isinstance(error, FileNotFoundError):
                raise self._error("not there yet: no service has compared anything") from None
            reason = error.strerror if isinstance(error, OSError) else error
            raise self._error(f"cannot be used: {reason}") from None

    def _error(self, reason: str) -> StartError:
        return StartError(f"{self.path}: {reason}")


def _clear(database: sqlite3.Connection, now: float) -> None:
    """Let only comparisons count that begin from now on."""
    database.execute("UPDATE state SET since = ?", [now])
    database.execute("DELETE FROM comparisons")
    database.execute("DELETE FROM totals")


def _store(database: sqlite3.Connection, key: bytes, recorded: Recorded, now: float) -> None:
    """Store the result of a query, or remove it if no source knows the user any more."""
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
