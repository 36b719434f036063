"""The SQL that finds duplicates among the users in a temporary table, and applies them to theirs.

Rows that stay as they are, are not written, so that other columns keep their values. A row whose
card number changes is deleted and inserted: two users who exchange their card numbers would
otherwise violate the unique index, whatever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted, quoted_table
from idv_postgres.table import Column

_SAME_NICKNAME = "the nickname is that of an earlier line"
_SAME_CARD = "the card number is that of an earlier line"
_TAKEN_CARD = "the card number is that of a stored user who is not in the file, or is rejected"
_FIELDS = ("nickname", "card_number", "plan", "profile_url")
Selection = tuple[str, str]
"""A statement that deletes staged rows and returns their lines, and why they are rejected."""


class ImportSql:
    """The statements for one table, to be run in their order."""

    def __init__(self, options: PostgresOptions, columns: Mapping[str, Column]) -> None:
        names = options.columns
        url = names.profile_url or "profile_url"
        self.has_url = url in columns
        self._table = quoted_table(options.table)
        own = (names.nickname, names.card_number, names.plan, url)
        self._fields = [
            (columns[name], field)
            for name, field in zip(own, _FIELDS, strict=True)
            if name in columns
        ]
        card, nickname = f"u.{quoted(names.card_number)}::text", f"u.{quoted(names.nickname)}::text"
        fold = 'lower({} COLLATE "C")' if options.folds_nicknames else '{} COLLATE "C"'
        self._key, self._other_key = fold.format("s.nickname"), fold.format("t.nickname")
        self._stored_key = fold.format(nickname)
        self._same_nickname = f"{self._stored_key} = {self._key}"
        self._same = f"SELECT FROM idv_staged AS s WHERE {self._same_nickname}"
        self._same_card = f'{card} COLLATE "C" = s.card_number'
        given = f"{self._key} IN (SELECT unnest($1::text[]))"
        taken = f"DELETE FROM idv_staged AS s WHERE {given} RETURNING s.line"  # noqa: S608 - quoted
        self.taken_cards: Selection = taken, _TAKEN_CARD
        """For the users with these nicknames."""
        self.count = f"SELECT count(*) FROM {self._table}"  # noqa: S608 - quoted
        self.delete_others = f"DELETE FROM {self._table} AS u WHERE NOT EXISTS ({self._same})"  # noqa: S608 - quoted
        """Deletes the users that are not staged."""

    create = """
    SET LOCAL work_mem = '64MB';
    CREATE TEMPORARY TABLE idv_staged (
        line bigint, nickname text COLLATE "C", card_number text COLLATE "C",
        plan text COLLATE "C", profile_url text COLLATE "C"
    ) ON COMMIT DROP
    """
    # Without statistics the planner would take it for small, and use nested loops.
    analyze = "ANALYZE idv_staged"

    @property
    def duplicates(self) -> Iterable[Selection]:
        """Return the statements for lines with a nickname or card number of an earlier line."""
        for key, reason in ((self._key, _SAME_NICKNAME), ("s.card_number", _SAME_CARD)):
            # The window function sorts: only the rows of values that come twice, mostly none.
            twice = f"SELECT {key} FROM idv_staged AS s GROUP BY {key} HAVING count(*) > 1"  # noqa: S608
            # By ctid, since a line of YAML may have several users.
            numbered = (
                "SELECT s.ctid AS id, row_number() OVER "  # noqa: S608 - quoted
                f"(PARTITION BY {key} ORDER BY line, s.ctid) AS place "
                f"FROM idv_staged AS s WHERE {key} IN ({twice})"
            )
            later = f"SELECT id FROM ({numbered}) AS t WHERE place > 1"  # noqa: S608 - quoted
            yield f"DELETE FROM idv_staged WHERE ctid IN ({later}) RETURNING line", reason  # noqa: S608 - quoted

    @property
    def lock(self) -> str:
        """Return the statement that locks other writers out; lookups continue."""
        return f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE"

    @property
    def card_moves(self) -> str:
        """Return the query for the users who get the card number of another stored user.

        The rows have the nickname, and that of the other one, ``NULL`` if it is not staged.
        """
        return (
            f"SELECT {self._key}, {self._other_key} FROM idv_staged AS s "  # noqa: S608 - quoted
            f"JOIN {self._table} AS u ON {self._same_card} "
            f"AND {self._stored_key} IS DISTINCT FROM {self._key} "
            f"LEFT JOIN idv_staged AS t ON {self._other_key} = {self._stored_key}"
        )

    @property
    def changes(self) -> Iterable[str]:
        """Return the statements that delete users with another card number, update and insert."""
        table = self._table
        kept = [(column, field) for column, field in self._fields if field != "card_number"]
        assigned = ", ".join(
            f"{quoted(column.name)} = {_value(column, field)}" for column, field in kept
        )
        differs = " OR ".join(
            f'u.{quoted(column.name)}::text COLLATE "C" IS DISTINCT FROM s.{field}'
            for column, field in kept
        )
        names = ", ".join(quoted(column.name) for column, _ in self._fields)
        values = ", ".join(_value(*each) for each in self._fields)
        yield (
            f"DELETE FROM {table} AS u "  # noqa: S608 - quoted
            f"WHERE EXISTS ({self._same} AND ({self._same_card}) IS NOT TRUE)"
        )
        yield (
            f"UPDATE {table} AS u SET {assigned} FROM idv_staged AS s "  # noqa: S608 - quoted
            f"WHERE {self._same_nickname} AND ({differs})"
        )
        # Card numbers come in no order, while nicknames often do: entries that follow each other
        # are inserted into an index faster.
        yield (
            f"INSERT INTO {table} ({names}) SELECT {values} FROM idv_staged AS s WHERE NOT EXISTS "  # noqa: S608 - quoted
            f"(SELECT FROM {table} AS u WHERE {self._same_nickname}) ORDER BY s.card_number"
        )


def _value(column: Column, field: str) -> str:
    """Return the staged value; text is assigned to every type but an enum without a cast."""
    return f"s.{field}::{column.type_sql}" if column.is_enum else f"s.{field}"
