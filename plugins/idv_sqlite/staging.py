"""Users on their way into a table: staged in a temporary database, checked, and applied.

Rows that stay as they are, are not written, so that other columns keep their values. A row whose
card number changes is deleted and inserted: two users who exchange their card numbers would
otherwise violate the unique index, whatever comes first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from idv_sqlite.options import SqliteOptions
from idv_sqlite.table import quoted
from tornado_idv import NumberedUser

_BUSY_TIMEOUT = 10.0
"""Seconds to wait for another writer, or for a reader at the commit."""
_CACHE = -64 * 1024
"""Of pages, in KiB."""
_ROWS_AT_ONCE = 400
"""Rows of one statement: one by one would take twice as long."""

_SAME_NICKNAME = "the nickname is that of an earlier line"
_SAME_CARD = "the card number is that of an earlier line"
_TAKEN_CARD = "the card number is that of a stored user who is not in the file, or is rejected"
_NO_COLUMN = "profile_url: the table has no column for it; see columns.profile_url of the backend"


class Staging:
    """A temporary database, which SQLite keeps on disk and deletes, attached to the target."""

    def __init__(self, options: SqliteOptions, profile_url: str | None) -> None:
        columns = options.columns
        self.count = 0
        """The number of users that are staged."""
        self._options = options
        self._table = f"target.{quoted(options.table)}"
        self._nickname, self._card = quoted(columns.nickname), quoted(columns.card_number)
        self._same = f"SELECT 1 FROM staged AS s WHERE s.nickname = u.{self._nickname}"  # noqa: S608 - quoted
        self._names = {self._nickname: "nickname", self._card: "card_number"}
        self._names[quoted(columns.plan)] = "plan"
        self._has_url = profile_url is not None
        if profile_url is not None:
            self._names[quoted(profile_url)] = "profile_url"
        self._connection = sqlite3.connect("", isolation_level=None, timeout=_BUSY_TIMEOUT)
        collation = "NOCASE" if options.folds_nicknames else "BINARY"
        self._run(f"PRAGMA cache_size = {_CACHE}")
        self._run("PRAGMA trusted_schema = OFF")
        # Comparisons take the collation of their left side, which is always a column of this.
        self._run(
            f"CREATE TABLE staged (line INTEGER, nickname TEXT COLLATE {collation}, "
            "card_number TEXT, plan TEXT, profile_url TEXT)"
        )

    def fill(self, users: Iterable[NumberedUser]) -> list[tuple[int, str]]:
        """Stage users; return the lines that the table has no column for, with the reasons."""
        rejected: list[tuple[int, str]] = []
        rows = self._rows(users, rejected)
        self._run("BEGIN")
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            values = ", ".join(["(?, ?, ?, ?, ?)"] * len(chunk))
            self._run(f"INSERT INTO staged VALUES {values}", *chain.from_iterable(chunk))  # noqa: S608
            self.count += len(chunk)
        self._run("COMMIT")
        return rejected

    def delete_duplicates(self) -> list[tuple[int, str]]:
        """Remove users with the nickname or card number of an earlier line; return the lines.

        Creates the indexes of `card_conflicts` and `apply`.
        """
        self._run("BEGIN")
        # With all columns: what is applied is read in its order, and only from it.
        self._run(
            "CREATE INDEX staged_nickname ON staged "
            "(nickname, line, card_number, plan, profile_url)"
        )
        self._run("CREATE INDEX staged_card_number ON staged (card_number)")
        rejected = self._delete_later_ones("nickname", _SAME_NICKNAME)
        rejected += self._delete_later_ones("card_number", _SAME_CARD)
        self._run("COMMIT")
        return rejected

    def attach(self, path: Path, *, is_private: bool = False) -> None:
        """Open the target; a private one needs no journal, as it is deleted after a failure."""
        self._run("ATTACH ? AS target", str(path))
        self._run(f"PRAGMA target.cache_size = {_CACHE}")
        if is_private:
            self._run("PRAGMA target.journal_mode = OFF")
            self._run("PRAGMA target.synchronous = OFF")

    def detach(self) -> None:
        """Close the target."""
        self._run("DETACH target")

    def close(self) -> None:
        """Roll back what is not committed, and delete the temporary database."""
        self._connection.close()

    def create_table(self) -> None:
        """Create the table in a new file."""
        columns = ", ".join(
            f"{name} TEXT{'' if source == 'profile_url' else ' NOT NULL'}"
            for name, source in self._names.items()
        )
        self._run(f"CREATE TABLE {self._table} ({columns})")

    def create_indexes(self) -> None:
        """Create the unique indexes of a new table; before its rows, they would take longer."""
        table = self._options.table
        collation = " COLLATE NOCASE" if self._options.folds_nicknames else ""
        for name, key in (
            ("nickname", f"{self._nickname}{collation}"),
            ("card_number", self._card),
        ):
            index = f"target.{quoted(f'{table}_{name}')}"
            self._run(f"CREATE UNIQUE INDEX {index} ON {quoted(table)} ({key})")

    def card_conflicts(self) -> list[tuple[int, str]]:
        """Remove users with a card number that a stored user keeps; return the lines.

        A stored user keeps it who is not staged, or, as that one keeps a card number, is removed.
        """
        nickname, card = f"u.{self._nickname}", f"u.{self._card}"
        return self._delete(
            "WITH RECURSIVE taker(id) AS ("  # noqa: S608 - quoted
            f"SELECT s.rowid FROM staged AS s JOIN {self._table} AS u ON s.card_number = {card} "
            f"WHERE NOT EXISTS (SELECT 1 FROM staged AS t WHERE t.nickname = {nickname}) "
            "UNION SELECT s.rowid FROM taker CROSS JOIN staged AS t ON t.rowid = taker.id "
            f"CROSS JOIN {self._table} AS u ON t.nickname = {nickname} "
            f"CROSS JOIN staged AS s ON s.card_number = {card}"
            ") SELECT id FROM taker",
            _TAKEN_CARD,
        )

    def begin(self) -> int:
        """Lock other writers out, and return the number of users in the table."""
        self._run("BEGIN IMMEDIATE")
        ((count,),) = self._run(f"SELECT count(*) FROM {self._table}")  # noqa: S608 - quoted
        return int(count)

    def delete_others(self) -> int:
        """Delete the users that are not staged, and return their number."""
        return self._run(f"DELETE FROM {self._table} AS u WHERE NOT EXISTS ({self._same})").rowcount  # noqa: S608 - quoted

    def apply(self) -> tuple[int, int]:
        """Update and add users, and return the numbers of added and of updated ones."""
        table, nickname = self._table, self._nickname
        kept = {name: source for name, source in self._names.items() if name != self._card}
        assigned = ", ".join(f"{name} = s.{source}" for name, source in kept.items())
        differs = " OR ".join(
            f"u.{name} COLLATE BINARY IS NOT s.{source}" for name, source in kept.items()
        )
        moved = self._run(
            f"DELETE FROM {table} AS u "  # noqa: S608 - quoted
            f"WHERE EXISTS ({self._same} AND s.card_number IS NOT u.{self._card})"
        ).rowcount
        updated = self._run(
            f"UPDATE {table} AS u SET {assigned} FROM staged AS s "  # noqa: S608 - quoted
            f"WHERE s.nickname = u.{nickname} AND ({differs})"
        ).rowcount
        inserted = self._run(
            f"INSERT INTO {table} ({', '.join(self._names)}) "  # noqa: S608 - quoted
            f"SELECT {', '.join(self._names.values())} FROM staged AS s WHERE s.nickname NOT IN "
            f"(SELECT {nickname} FROM {table} WHERE {nickname} IS NOT NULL) ORDER BY s.nickname"
        ).rowcount
        return inserted - moved, updated + moved

    def commit(self) -> None:
        """Commit what has been changed since `begin`."""
        self._run("COMMIT")

    def _rows(
        self, users: Iterable[NumberedUser], rejected: list[tuple[int, str]]
    ) -> Iterator[tuple[object, ...]]:
        has_url = self._has_url
        for line, user in users:
            if user.profile_url is not None and not has_url:
                rejected.append((line, _NO_COLUMN))
            else:
                yield line, user.nickname, user.card_number, user.plan, user.profile_url

    def _delete_later_ones(self, column: str, reason: str) -> list[tuple[int, str]]:
        """Remove users with the value of an earlier line; return the lines."""
        return self._delete(
            f"SELECT id FROM (SELECT rowid AS id, row_number() OVER "  # noqa: S608 - constants
            f"(PARTITION BY {column} ORDER BY rowid) AS place FROM staged WHERE {column} IN "
            f"(SELECT {column} FROM staged GROUP BY {column} HAVING count(*) > 1)) "
            "WHERE place > 1",
            reason,
        )

    def _delete(self, rowids: str, reason: str) -> list[tuple[int, str]]:
        """Delete users by rowid instead of line, since one line of YAML may hold several."""
        rows = self._run(
            f"DELETE FROM staged WHERE rowid IN ({rowids}) RETURNING line"  # noqa: S608 - constants
        ).fetchall()
        self.count -= len(rows)
        return [(line, reason) for (line,) in rows]

    def _run(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)
