"""The file with the comparisons of a shadow: a SQLite database with a rollback journal.

Several processes write it. A ``-wal`` file would outlive them, and apply to another file of that
name (see `tornado_idv.keys.store_file`).
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tornado_idv.errors import StartError
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.model import Query

_APPLICATION_ID = 0x69647673
"""Marks a database as such a file; ASCII ``idvs``."""
_VERSION = 1
_BUSY_TIMEOUT = 5.0
_DAY = 86400
_BATCH = 500
"""Comparisons in one statement: to render more would stall the event loop."""
VERDICTS = ("missing", "extra", "differs", "match", "unverified")
"""The results that users have, the most severe first; of a user's queries that one counts."""

# A row of comparisons is one query. Its text is there for those that an operator has to look at.
_SCHEMA = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_VERSION}",
    "CREATE TABLE state (key BLOB, backend TEXT, since REAL, imported REAL, importing REAL)",
    "CREATE TABLE totals (day INTEGER, result TEXT, count INTEGER, PRIMARY KEY (day, result))",
    """CREATE TABLE comparisons (
        query TEXT PRIMARY KEY, user TEXT, result TEXT, fields TEXT, began REAL, text TEXT
    ) WITHOUT ROWID""",
)
# Rows come as one JSON parameter: at each of several, Python's sqlite3 takes the interpreter's lock
# again, for which it waits while requests are answered. Of several processes, one may write an
# older result after a newer one.
_COLUMNS = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(6))
_STORE = f"""
INSERT INTO comparisons SELECT {_COLUMNS} FROM json_each(?) WHERE true
ON CONFLICT (query) DO UPDATE SET user = excluded.user, result = excluded.result,
    fields = excluded.fields, began = excluded.began, text = excluded.text
WHERE excluded.began >= began AND (excluded.result <> 'unverified' OR result = 'unverified')
"""  # noqa: S608 - constants
_REMOVE = """
DELETE FROM comparisons WHERE query IN (
    SELECT query FROM json_each(?) JOIN comparisons
    ON query = json_extract(value, '$[0]') AND began <= json_extract(value, '$[1]'))
"""
_COUNT = """
INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (day, result) DO UPDATE
SET count = count + excluded.count
"""
_TRIM = """
DELETE FROM comparisons WHERE query IN (
    SELECT query FROM comparisons ORDER BY result = 'match' DESC, began LIMIT ?)
"""
_RANK = (
    f"min(CASE result {' '.join(f'WHEN {each!r} THEN {i}' for i, each in enumerate(VERDICTS))} END)"
)
_USERS = f"""
SELECT rank, fields, count(*) FROM (
    SELECT {_RANK} AS rank, group_concat(DISTINCT fields) AS fields FROM comparisons GROUP BY user
) GROUP BY rank, fields
"""  # noqa: S608 - constants
_LISTED = f"""
SELECT user, {_RANK} AS rank, group_concat(fields), max(began),
    group_concat(text, char(10))
FROM comparisons GROUP BY user HAVING rank <> {VERDICTS.index("match")} ORDER BY rank, user
"""  # noqa: S608 - constants


class Recorded(NamedTuple):
    """A comparison, and when it began, in Unix time."""

    query: Query
    comparison: Comparison
    began: float


class Summary(NamedTuple):
    """Numbers since the last import, or since the file was created.

    ``users`` are the numbers of users by `VERDICTS`; ``differing`` are those who differ, by the
    fields. ``totals`` are the numbers of comparisons by result. ``importing`` is when an import
    began that has not ended. Times are in Unix time.
    """

    since: float
    imported: float | None
    importing: float | None
    days: int
    users: dict[str, int]
    differing: dict[frozenset[str], int]
    totals: dict[str, int]


class ListedUser(NamedTuple):
    """A user who is not the same in both sources; ``queries`` are what was looked up, in full."""

    user: str
    result: str
    fields: list[str]
    compared: float
    queries: list[str]


class ShadowFile:
    """The comparisons of the shadow ``backend`` in a file, of about ``max_rows`` queries.

    Each method opens the file, which may have been replaced or removed. They raise `StartError`.
    """

    def __init__(self, path: Path, backend: str, max_rows: int = 1_000_000) -> None:
        self.path = path
        self._backend = backend
        self._max_rows = max_rows
        self._untrimmed = max_rows
        """Comparisons that were stored since the rows were counted."""

    def write(self, comparisons: Sequence[Recorded], skipped: int, now: float) -> None:
        """Store comparisons, except for those that began before an import ended."""
        with self._opened(now) as database:
            ((key, since, importing),) = database.execute("SELECT key, since, importing FROM state")
            counted = [each for each in comparisons if each.began >= since and not importing]
            totals: Counter[tuple[float, str]] = Counter(
                (each.began // _DAY, each.comparison.result) for each in counted
            )
            if skipped and not importing:
                totals[now // _DAY, "skipped"] = skipped
            database.executemany(_COUNT, [(*each, count) for each, count in totals.items()])
            for first in range(0, len(counted), _BATCH):
                self._store(database, key, counted[first : first + _BATCH])
            self._untrimmed += len(counted)
            if self._untrimmed > self._max_rows // 100:
                ((rows,),) = database.execute("SELECT count(*) FROM comparisons")
                database.execute(_TRIM, [max(0, rows - self._max_rows)])
                self._untrimmed = 0

    def _store(
        self, database: sqlite3.Connection, key: bytes, comparisons: Iterable[Recorded]
    ) -> None:
        """Store comparisons that found a user, and remove queries that no source knows any more."""

        def digest(text: str) -> str:
            return blake2b(text.encode(), key=key, digest_size=12).hexdigest()

        stored, removed = [], []
        for query, comparison, began in comparisons:
            result, user = comparison.result, comparison.user
            hashed = digest(query.text)
            if user is not None and result in VERDICTS:
                text = None if result == "match" else query.text
                names = ",".join(comparison.fields) or None
                stored.append([hashed, digest(f"@{user.nickname}"), result, names, began, text])
            elif result == "match":
                removed.append([hashed, began])
        database.execute(_STORE, [json.dumps(stored)])
        database.execute(_REMOVE, [json.dumps(removed)])

    def begin_import(self, now: float) -> None:
        """Drop all comparisons, and ignore further ones until `end_import`.

        Without a file, no service has compared anything.
        """
        if self._exists():
            with self._opened(now) as database:
                database.execute("UPDATE state SET importing = ?", [now])
                database.execute("DELETE FROM comparisons")
                database.execute("DELETE FROM totals")

    def end_import(self, now: float) -> None:
        """Count the comparisons that begin from now on."""
        if self._exists():
            with self._opened(now) as database:
                set_times = "UPDATE state SET importing = NULL, imported = ?1, since = ?1"
                database.execute(set_times, [now])

    def summary(self) -> Summary:
        """Return the numbers of users and of comparisons."""
        with self._opened() as database:
            sql = "SELECT since, imported, importing FROM state"
            ((since, imported, importing),) = database.execute(sql)
            users = dict.fromkeys(VERDICTS, 0)
            differing: dict[frozenset[str], int] = {}
            for rank, fields, count in database.execute(_USERS):
                users[VERDICTS[rank]] += count
                if VERDICTS[rank] == "differs":
                    names = frozenset(fields.split(","))
                    differing[names] = differing.get(names, 0) + count
            days = "SELECT count(DISTINCT day) FROM totals WHERE result IN (?, ?, ?, ?)"
            ((day_count,),) = database.execute(days, VERDICTS[:4])
            rows = database.execute("SELECT result, sum(count) FROM totals GROUP BY result")
            return Summary(since, imported, importing, day_count, users, differing, dict(rows))

    def listed(self) -> Iterable[ListedUser]:
        """Return all users who are not known to be the same in both sources."""
        with self._opened() as database:
            rows = database.execute(_LISTED).fetchall()
        for user, rank, fields, began, texts in rows:
            names = sorted(set((fields or "").split(",")) - {""})
            yield ListedUser(user, VERDICTS[rank], names, began, sorted((texts or "").split("\n")))

    @contextmanager
    def _opened(self, now: float | None = None) -> Iterator[sqlite3.Connection]:
        """Begin a transaction, which is rolled back if it fails.

        With ``now`` it may write, and the file is created if there is none.
        """
        try:
            if now is not None:
                with suppress(FileExistsError):  # closing one that is open drops SQLite's locks
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self._error("not a regular file")
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            database = sqlite3.connect(uri, timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
            with closing(database):
                database.execute("PRAGMA secure_delete = ON")
                database.execute("BEGIN" if now is None else "BEGIN IMMEDIATE")
                is_empty = database.execute("PRAGMA schema_version").fetchone() == (0,)
                if is_empty and now is not None:
                    for statement in _SCHEMA:
                        database.execute(statement)
                    state = [secrets.token_bytes(32), self._backend, now, None, None]
                    database.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", state)
                self._check(database)
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:  # whose texts have no values
            raise self._error(f"cannot be used: {error}") from None
        except FileNotFoundError:
            raise self._error("there is no such file, or no folder for it") from None
        except OSError as error:
            raise self._error(f"cannot be used: {error.strerror}") from None

    def _exists(self) -> bool:
        try:
            os.lstat(self.path)
        except OSError as error:  # opening the file reports a folder that cannot be searched
            return not isinstance(error, FileNotFoundError)
        return True

    def _check(self, database: sqlite3.Connection) -> None:
        ((application,),) = database.execute("PRAGMA application_id")
        ((version,),) = database.execute("PRAGMA user_version")
        if application != _APPLICATION_ID:
            raise self._error("no file of a shadow; name another one")
        if version != _VERSION:
            raise self._error(f"written by another tornado-idv, as version {version}; remove it")
        ((backend,),) = database.execute("SELECT backend FROM state")
        if backend != self._backend:
            raise self._error(f"of the shadow {backend}; name another one for {self._backend}")

    def _error(self, reason: str) -> StartError:
        return StartError(f"{self.path}: {reason}")
