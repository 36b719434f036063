"""A temporary database that compares the rows of a list with the users of a store.

SQLite keeps the database on disk and deletes it. The database also contains the rejected rows,
because their users must not be removed.
"""

import random
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

from tornado_idv.cli.common import RefusedError
from tornado_idv.errors import LookupFailed
from tornado_idv.features.users.rows import Named
from tornado_idv.identifiers import FIELDS
from tornado_idv.interfaces.user_store import StoredRow, UserTransaction
from tornado_idv.lookup.canary import KINDS
from tornado_idv.model import Query

ListedRow = tuple[int, int, str, str, str, str | None]
"""A row of the list: its number, its line, and its fields.

An empty profile URL removes the stored URL. ``None`` (no such column) keeps the stored URL.
"""
Rejected = tuple[int, str, int]
"""A rejected row: its line, the reason, and 1 if its user would be "not found" after the import."""
_CACHE = -64 * 1024
"""Size of SQLite's page cache. Negative values are in KiB."""
_ROWS_AT_ONCE = 400
"""Rows in one INSERT. One INSERT per row takes twice as long."""
_TRIES = 20
"""Attempts to find an unused card number with one random digit, then with two, and so on."""
_NO_COLUMN = "profile_url: the table has no column for it; see columns.profile_url of the backend"
_SCHEMA = """
CREATE TABLE listed (row, line, nickname TEXT COLLATE {0}, card_number TEXT, plan TEXT,
  profile_url TEXT, reason TEXT, is_unclear);
CREATE TABLE stored (nickname TEXT COLLATE {0}, card_number TEXT, plan TEXT, profile_url TEXT,
  key, stays INTEGER, line);
"""
# Rejects all rows with a duplicate value, because none of them is more likely to be right.
_DUPLICATES = """
UPDATE listed AS l SET reason = 'the {1} is also that of line ' || (SELECT o.line
  FROM listed AS o WHERE o.{0} = l.{0} AND o.row IS NOT l.row ORDER BY o.row LIMIT 1)
WHERE reason IS NULL AND {0} IN
  (SELECT {0} FROM listed WHERE {0} IS NOT NULL GROUP BY {0} HAVING min(row) < max(row))
"""
_CARD_INDEX = "CREATE INDEX IF NOT EXISTS stored_card_number ON stored (card_number)"
# Stored users named by rejected rows stay (stays = 0). A row names a user by nickname. It also
# names a user by card number, unless a valid row has this user's nickname. Rows with the same key
# stay together, because the store would also remove them together.
_NAMED = """
CREATE TABLE named AS
SELECT l.row, l.line, s.rowid AS user FROM listed AS l CROSS JOIN stored AS s
  ON s.nickname = l.nickname WHERE l.reason IS NOT NULL
UNION ALL SELECT l.row, l.line, s.rowid FROM listed AS l CROSS JOIN stored AS s
  ON s.card_number = l.card_number WHERE l.reason IS NOT NULL AND NOT EXISTS
    (SELECT 1 FROM listed AS o WHERE o.nickname = s.nickname AND o.reason IS NULL);
UPDATE stored AS s SET stays = 0, line = n.line FROM named AS n WHERE n.user = s.rowid;
UPDATE stored SET stays = 0 WHERE key IN (SELECT key FROM stored WHERE stays = 0);
"""
# Counts the rejected rows that may be about any stored user.
_UNCLEAR = """
SELECT count(DISTINCT row) FROM listed WHERE is_unclear AND row NOT IN (SELECT row FROM named)
"""
_KEEP_UNLISTED = """
UPDATE stored AS s SET stays = 0 WHERE s.stays IS NULL AND NOT EXISTS
  (SELECT 1 FROM listed AS l WHERE l.nickname = s.nickname AND l.reason IS NULL)
"""
# Rejects valid rows with the card number of another user who stays. As a result, the users of these
# rows stay, too, with their stored card numbers. So the statement is repeated, until it rejects no
# row. `stays` is the number of the repetition.
_TAKEN_CARDS = """
UPDATE listed SET reason = 'the card number belongs to a stored user' || CASE WHEN s.line IS NULL
  THEN ' who is not in the list' ELSE ', kept because line ' || s.line || ' is rejected' END
FROM stored AS s WHERE s.stays = ? AND listed.card_number = s.card_number
  AND listed.reason IS NULL AND listed.nickname IS NOT s.nickname
RETURNING listed.line, listed.nickname
"""
# Collects the stored users to update or to remove. For a removed user, the new values are NULL.
_CHANGED = """
CREATE TABLE changed AS
SELECT s.key, l.line, l.nickname, l.card_number, l.plan, iif(l.profile_url IS NULL, s.profile_url,
    nullif(l.profile_url, '')) AS profile_url, s.nickname AS old_nickname,
  s.card_number AS old_card_number, s.plan AS old_plan, s.profile_url AS old_profile_url
FROM stored AS s LEFT JOIN listed AS l ON l.nickname = s.nickname AND l.reason IS NULL
WHERE iif(l.line IS NULL, s.stays IS NULL, l.nickname COLLATE BINARY IS NOT s.nickname
  OR l.card_number IS NOT s.card_number OR l.plan IS NOT s.plan
  OR l.profile_url IS NOT NULL AND nullif(l.profile_url, '') IS NOT s.profile_url)
"""
_ADDED = """
SELECT {} FROM listed AS l WHERE l.reason IS NULL AND NOT EXISTS
  (SELECT 1 FROM stored AS s WHERE s.nickname = l.nickname)
"""
_KEPT = """
SELECT (SELECT count(*) FROM listed WHERE {0} = ?1 AND reason IS NULL)
  + (SELECT count(*) FROM stored WHERE {0} = ?1 AND stays IS NOT NULL)
"""
_NEW = """
SELECT (SELECT count(*) FROM listed WHERE reason IS NULL) - count(*)
  + (SELECT count(*) FROM changed WHERE line IS NULL) FROM stored WHERE stays IS NULL
"""
_STAYS = "EXISTS (SELECT 1 FROM stored AS s WHERE s.{0} = l.{0} AND s.stays IS NOT NULL)"
# A row with a syntax error (is_unclear = 2) names a user only by nickname and card number together,
# because any word in it may look like a nickname.
_REJECTED = f"""
SELECT line, min(reason), NOT CASE
  WHEN is_unclear = 2 THEN EXISTS (SELECT 1 FROM listed AS n
    CROSS JOIN stored AS s ON s.nickname = n.nickname
    CROSS JOIN listed AS c ON c.row = n.row AND c.card_number = s.card_number
    WHERE n.row = l.row AND n.reason IS NOT NULL)
  WHEN count(card_number) = 0 THEN max({_STAYS.format("nickname")})
  ELSE max({_STAYS.format("card_number")})
    AND (is_unclear IS 1 OR max({_STAYS.format("nickname")})) END
FROM listed AS l WHERE reason IS NOT NULL GROUP BY row
"""  # noqa: S608 - constants
_MOVED_CARDS = """
SELECT c.line, o.line, c.old_nickname, c.old_card_number, c.old_plan, c.old_profile_url, c.key
FROM changed AS c CROSS JOIN changed AS o ON o.card_number = c.old_card_number
WHERE c.card_number <> c.old_card_number
"""
_CHANGES = f"""
SELECT 'removed', old_nickname, '' FROM changed WHERE line IS NULL UNION ALL
SELECT 'kept', nickname, ': line ' || line || ' is rejected' FROM stored WHERE line IS NOT NULL
UNION ALL SELECT 'changed', nickname, ':'
  || iif(card_number IS NOT old_card_number, ' card_number', '')
  || iif(plan IS NOT old_plan, ' plan', '')
  || iif(profile_url IS NOT old_profile_url, ' profile_url', '') FROM changed
WHERE line IS NOT NULL UNION ALL SELECT * FROM ({_ADDED.format("'added', l.nickname, ''")})
"""  # noqa: S608 - constants


class Staging:
    """The database of one import. Call `fill`, `compare` and `apply` in this order."""

    def __init__(self, *, folds: bool) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._run(f"PRAGMA cache_size = {_CACHE}")
        # A comparison in SQLite uses the collation of its left side.
        self._database.executescript(_SCHEMA.format("NOCASE" if folds else "BINARY"))
        self.unclear = self.held = 0
        """Numbers of rejected rows that may be about any user, and of users kept for them."""

    def close(self) -> None:
        """Delete the database."""
        self._database.close()

    def reject(
        self, row: int, line: int, reason: str, named: Iterable[Named], *, is_unclear: int
    ) -> None:
        """Add a rejected row, with the users that it may be about.

        ``is_unclear`` is 1 for an invalid nickname, 2 for a syntax error, and otherwise 0.
        """
        for nickname, card_number in [*named] or [(None, None)]:
            self._run(
                "INSERT INTO listed (row, line, nickname, card_number, reason, is_unclear) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                *(row, line, nickname, card_number, reason, is_unclear),
            )

    def fill(self, rows: Iterable[ListedRow]) -> None:
        """Add the valid rows of the list, and reject duplicates. The caller rejects other rows."""
        self._insert("listed (row, line, nickname, card_number, plan, profile_url)", 6, rows)
        for column, name in (("nickname", "nickname"), ("card_number", "card number")):
            if not self._index("listed", column):
                self._run(_DUPLICATES.format(column, name))
        self._run("CREATE INDEX rejected ON listed (row) WHERE reason IS NOT NULL")

    def compare(self, target: UserTransaction, *, merges: bool) -> None:
        """Determine the changes to a store. Reject rows with the card number of a kept user.

        Users named by rejected rows are kept. With ``merges``, users not in the list are kept, too.
        """
        self._insert("stored (nickname, card_number, plan, profile_url, key)", 5, target.stored())
        self._run("CREATE INDEX staying ON stored (stays) WHERE stays IS NOT NULL")
        if not self._index("stored", "nickname"):
            self._run(
                "UPDATE listed SET reason = 'two stored users have the nickname; correct the table'"
                " WHERE reason IS NULL AND nickname IN (SELECT nickname FROM stored "
                "WHERE nickname IS NOT NULL GROUP BY nickname HAVING count(*) > 1)"
            )
        if not target.has_profile_url:
            self._run("UPDATE listed SET reason = ? WHERE profile_url > ''", _NO_COLUMN)
        if self._number("SELECT EXISTS (SELECT 1 FROM listed WHERE reason IS NOT NULL)"):
            self._run(_CARD_INDEX)
            self._database.executescript(_NAMED)
            self.unclear = self._number(_UNCLEAR)
        if merges or self.unclear:
            held = self._run(_KEEP_UNLISTED).rowcount
            self.held = 0 if merges else held
        for step in count():
            taken = self._run(_TAKEN_CARDS, step).fetchall()
            if not taken:
                break
            self._run(_CARD_INDEX)
            # The users of these rows stay with their old card numbers. Other rows of the list may
            # have these numbers, so the loop repeats the search.
            self._database.executemany(
                f"UPDATE stored SET stays = {step + 1}, line = ? "  # noqa: S608 - a number
                "WHERE nickname = ? AND stays IS NULL",
                taken,
            )
        self._run(_CHANGED)

    def rejected(self) -> list[Rejected]:
        """Return the rejected rows in the order of the list."""
        return self._run(_REJECTED).fetchall()

    def numbers(self) -> tuple[int, int, int]:
        """Return the numbers of stored users, removed users, and users kept for a rejected row."""
        ((stored, removed, kept),) = self._run(
            "SELECT count(*), (SELECT count(*) FROM changed WHERE line IS NULL), count(line) "
            "FROM stored"
        )
        return stored, removed, kept

    def will_have(self, query: Query) -> bool:
        """Return whether the store will have the user of a query after the import."""
        return self._number(_KEPT.format(KINDS[type(query)]), query.text.removeprefix("@")) > 0

    def plans(self) -> list[tuple[str, int]]:
        """Return each plan in the list with its number of rows."""
        return self._run(
            "SELECT plan, count(*) FROM listed WHERE reason IS NULL GROUP BY plan ORDER BY 2"
        ).fetchall()

    def changes(self) -> Iterator[str]:
        """Yield a line of text for each removed, kept, changed or added user."""
        for row in self._run(_CHANGES):
            yield "{} @{}{}\n".format(*row)

    def apply(self, target: UserTransaction) -> tuple[int, int, int]:
        """Change the store. Return the numbers of added, updated and removed users.

        A unique index is checked after each row. So if a card number passes from one user to
        another, the first user gets an unused number temporarily. Raises `RefusedError` if the
        table does not accept the unused number.
        """
        has_url = "SELECT EXISTS (SELECT 1 FROM listed WHERE profile_url IS NOT NULL)"
        fields = FIELDS if target.has_profile_url and self._number(has_url) else FIELDS[:3]
        names = ", ".join(fields)
        removed = target.delete(
            key for (key,) in self._run("SELECT key FROM changed WHERE line IS NULL")
        )
        if moved := self._run(_MOVED_CARDS).fetchall():
            self._run(_CARD_INDEX)
            try:
                target.update(fields, self._placeholders(moved, len(fields)))
            except LookupFailed as error:
                lines = " and ".join(map(str, sorted(moved[0][:2])))
                raise RefusedError(
                    f"lines {lines}: one user gets the card number of the other; the table rejects "
                    f"the temporary number needed for this ({error.reason}); nothing was changed"
                ) from None
        changed = f"SELECT {names}, key FROM changed WHERE line IS NOT NULL"  # noqa: S608
        updated = target.update(fields, self._run(changed))
        values = ["l.nickname", "l.card_number", "l.plan", "nullif(l.profile_url, '')"]
        query = _ADDED.format(", ".join(values[: len(fields)]))
        # Counting new users is fast. Finding them is slow, and often there are none.
        added = target.insert(fields, self._run(query)) if self._number(_NEW) else 0
        return added, updated, removed

    def _placeholders(self, moved: Sequence[Sequence[Any]], width: int) -> Iterator[StoredRow]:
        """Yield the stored users in ``moved``, each with an unused card number as a placeholder.

        Only the last digits are replaced, because the table may check the first digits.
        """
        query = (
            "SELECT EXISTS (SELECT 1 FROM stored WHERE card_number = ?1) "
            "OR EXISTS (SELECT 1 FROM listed WHERE card_number = ?1)"
        )
        used: set[str] = set()
        for *_, nickname, card_number, plan, url, key in moved:
            for tries in count():
                size = tries // _TRIES + 1
                digits = random.randrange(10**size)  # noqa: S311 - no secret
                unused = f"{card_number[:-size]}{digits:0{size}d}"
                if unused not in used and not self._number(query, unused):
                    break
            used.add(unused)
            yield *(nickname, unused, plan, url)[:width], key

    def _index(self, table: str, column: str) -> bool:
        """Create an index. Return whether all values are unique.

        The creation of a unique index detects duplicates faster than a query.
        """
        index = f"INDEX {table}_{column} ON {table} ({column})"
        try:
            self._run(f"CREATE UNIQUE {index}")
        except sqlite3.IntegrityError:
            self._run(f"CREATE {index}")
            return False
        return True

    def _insert(self, table: str, width: int, rows: Iterable[Sequence[object]]) -> None:
        values = f"({', '.join('?' * width)})"
        rows = iter(rows)
        self._run("BEGIN")
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            inserted = ", ".join([values] * len(chunk))
            self._run(f"INSERT INTO {table} VALUES {inserted}", *chain.from_iterable(chunk))  # noqa: S608
        self._run("COMMIT")

    def _number(self, query: str, *values: object) -> int:
        return int(self._run(query, *values).fetchone()[0])

    def _run(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._database.execute(sql, values)
