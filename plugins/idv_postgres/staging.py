"""The SQL that applies changes of users, which are in a temporary table, to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted, quoted_table
from idv_postgres.table import Column

_FIELDS = ("nickname", "card_number", "plan", "profile_url")


class ImportSql:
    """The statements for one table."""

    def __init__(self, options: PostgresOptions, columns: Mapping[str, Column]) -> None:
        names = options.columns
        own = (names.nickname, names.card_number, names.plan, names.profile_url or "profile_url")
        self.columns = {
            field: columns[name]
            for field, name in zip(_FIELDS, own, strict=True)
            if name in columns
        }
        self._table = quoted_table(options.table)
        card, nickname = f"u.{quoted(names.card_number)}::text", f"u.{quoted(names.nickname)}::text"
        # The nickname of a user; a row without one is found by its card number.
        self._key = f"coalesce({nickname}, chr(31) || {card}, '') COLLATE \"C\""
        self.count = f"SELECT count(*) FROM {self._table}"  # noqa: S608 - quoted
        texts = [
            f"u.{quoted(self.columns[field].name)}::text" if field in self.columns else "NULL"
            for field in _FIELDS
        ]
        self.stored = f"SELECT {', '.join(texts)}, {self._key} FROM {self._table} AS u"  # noqa: S608 - quoted
        self.lock = f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE"
        """Locks other writers out; lookups continue."""
        self.delete = (
            f"DELETE FROM {self._table} AS u USING idv_staged AS s WHERE {self._key} = s.key"  # noqa: S608 - quoted
        )

    create = """
    SET LOCAL work_mem = '64MB';
    CREATE TEMPORARY TABLE idv_staged (
        nickname text, card_number text, plan text, profile_url text, key text COLLATE "C"
    ) ON COMMIT DROP
    """
    # Without statistics the planner would take it for small, and use nested loops.
    analyze = "ANALYZE idv_staged"

    def update(self, fields: Sequence[str]) -> str:
        """Return the statement that sets these fields."""
        assigned = ", ".join(
            f"{quoted(self.columns[field].name)} = {self._value(field)}" for field in fields
        )
        return (
            f"UPDATE {self._table} AS u SET {assigned} FROM idv_staged AS s "  # noqa: S608 - quoted
            f"WHERE {self._key} = s.key"
        )

    def insert(self, fields: Sequence[str]) -> str:
        """Return the statement that adds users with these fields.

        Card numbers come in no order, while nicknames often do: entries that follow each other
        are inserted into an index faster.
        """
        names = ", ".join(quoted(self.columns[field].name) for field in fields)
        values = ", ".join(map(self._value, fields))
        return (
            f"INSERT INTO {self._table} ({names}) SELECT {values} FROM idv_staged AS s "  # noqa: S608 - quoted
            'ORDER BY s.card_number COLLATE "C"'
        )

    def _value(self, field: str) -> str:
        """Return the staged value; text is assigned to every type but an enum without a cast."""
        column = self.columns[field]
        return f"s.{field}::{column.type_sql}" if column.is_enum else f"s.{field}"
