"""The table or view with the users: what is asked of it, and whether it fits.

Columns are always written with the table in front (``u."name"``): SQLite reads a lone
``"name"`` that is no column as a text, and would answer "no such user" from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

import aiosqlite

from idv_sqlite.lookup import Lookup
from idv_sqlite.options import SqliteOptions
from tornado_idv import Broken, ByCard, ByNickname, Query, Unavailable, User

_NAMES: dict[type[Query], str] = {ByNickname: "nickname", ByCard: "card number"}


class Affinity(Enum):
    """What SQLite does to a value before it stores it in a column."""

    TEXT = "numbers become text"
    NUMERIC = "text that looks like a number becomes one"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that was looked at and fits.

    ``cautions`` are sentences for the log: what works, but slowly or not for sure.
    """

    lookups: dict[type[Query], Lookup]
    cautions: tuple[str, ...]

    def user(self, rows: Sequence[Sequence[Any]]) -> User | None:
        """The one user that a query's rows tell of; raises `Broken` if they do not fit."""
        if not rows:
            return None
        if len(rows) > 1:
            raise Broken("two rows answer one query")
        plan, card_number, nickname, profile_url = rows[0]
        _require_text("plan", plan)
        _require_text("card number", card_number)
        _require_text("nickname", nickname)
        if profile_url is not None:
            _require_text("profile URL", profile_url)
        return User(plan, card_number, nickname, profile_url)


async def inspect(connection: aiosqlite.Connection, options: SqliteOptions) -> Table:
    """Finds the table and its columns.

    Raises `Unavailable` for what is not there, with the names of what is, `Broken` for a
    column whose type cannot hold text and for nicknames with ``@``, and `sqlite3.Error`.
    """
    kind = await _kind(connection, options.table)
    types = await _column_types(connection, options)
    lookups = _lookups(options, kind, types)
    slow = await _slow(connection, kind, lookups)
    for query_type in slow if kind == "table" else list(lookups):
        lookups[query_type] = lookups[query_type].one_by_one()
    cautions = [_caution(slow)]
    if kind == "table":
        nickname, folds = options.columns.nickname, options.folds_nicknames
        cautions.append(await _two_rows(connection, options.table, nickname, folds=folds))
        cautions.append(await _two_rows(connection, options.table, options.columns.card_number))
        await _refuse_at_signs(connection, options)
    return Table(lookups, tuple(caution for caution in cautions if caution))


def quoted(name: str) -> str:
    """A name as an SQLite identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise Broken(f"the {name} of a row is not text, or empty")


async def _kind(connection: aiosqlite.Connection, table: str) -> str:
    rows = await connection.execute_fetchall(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    )
    kinds = {_folded(name): kind for name, kind in rows}
    if _folded(table) not in kinds:
        raise Unavailable(f"there is no table {_listed(table, [name for name, _ in rows])}")
    return str(kinds[_folded(table)])


async def _column_types(connection: aiosqlite.Connection, options: SqliteOptions) -> dict[str, str]:
    """The declared types by folded column name, once it is known that those wanted are there."""
    rows = await connection.execute_fetchall(
        "SELECT name, type FROM pragma_table_xinfo(?)", [options.table]
    )
    types = {_folded(name): str(declared).upper() for name, declared in rows}
    for column in options.columns.model_dump(exclude_none=True).values():
        if _folded(column) not in types:
            names = _listed(column, [name for name, _ in rows])
            raise Unavailable(f"the table {quoted(options.table)} has no column {names}")
    if await _is_strict(connection, options.table):
        # Only here `ANY` keeps each value as it came; elsewhere it turns digits into numbers.
        types = {name: "" if declared == "ANY" else declared for name, declared in types.items()}
    for column in (options.columns.nickname, options.columns.card_number):
        declared = types[_folded(column)]
        if _affinity(declared) is Affinity.NUMERIC:
            raise Broken(
                f"the column {quoted(column)} is declared {declared}, which turns digits into "
                "numbers and drops zeros in front; declare it TEXT and load the users again"
            )
    return types


async def _is_strict(connection: aiosqlite.Connection, table: str) -> bool:
    """Whether the table is declared STRICT; SQLite before 3.37 returns no rows and knows none."""
    rows = await connection.execute_fetchall(f"PRAGMA main.table_list({quoted(table)})")
    return any(strict for *_, strict in rows)


def _affinity(declared: str) -> Affinity:
    """What SQLite does to values of a column of this type: its own rules, in their order."""
    if "INT" in declared:
        return Affinity.NUMERIC
    if re.search("CHAR|CLOB|TEXT", declared):
        return Affinity.TEXT
    return Affinity.NUMERIC if declared and "BLOB" not in declared else Affinity.NONE


def _lookups(options: SqliteOptions, kind: str, types: dict[str, str]) -> dict[type[Query], Lookup]:
    columns = options.columns
    profile_url = columns.profile_url or "profile_url"
    selected = ", ".join(
        f"u.{quoted(name)}" if _folded(name) in types else "NULL"
        for name in (columns.plan, columns.card_number, columns.nickname, profile_url)
    )
    select = f"SELECT {selected} FROM {quoted(options.table)} AS u"  # noqa: S608 - quoted

    def by(column: str, *, folds: bool = False) -> Lookup:
        # What a view says of its columns' types need not hold for each of its rows.
        is_text = kind == "table" and _affinity(types[_folded(column)]) is Affinity.TEXT
        return Lookup.by(f"u.{quoted(column)}", select, is_text=is_text, folds=folds)

    by_nickname = by(columns.nickname, folds=options.folds_nicknames)
    return {ByNickname: by_nickname, ByCard: by(columns.card_number)}


async def _slow(
    connection: aiosqlite.Connection, kind: str, lookups: dict[type[Query], Lookup]
) -> list[type[Query]]:
    """The kinds of query for which the whole table is read."""
    # A view's own rows are read one by one as they come: only the tables behind it count.
    harmless = {"SCAN CONSTANT ROW", "SCAN u" if kind == "view" else ""}
    slow: list[type[Query]] = []
    for query in (ByNickname(""), ByCard("")):
        lookup = lookups[type(query)]
        sql = f"EXPLAIN QUERY PLAN {lookup.sql}"
        plan = await connection.execute_fetchall(sql, lookup.values(query))
        if any(str(row[-1]).startswith("SCAN") and row[-1] not in harmless for row in plan):
            slow.append(type(query))
    return slow


def _caution(slow: Sequence[type[Query]]) -> str:
    if not slow:
        return ""
    names = " or ".join(_NAMES[query_type] for query_type in slow)
    return f"a lookup by {names} reads the whole table; an index is missing"


async def _two_rows(
    connection: aiosqlite.Connection, table: str, column: str, *, folds: bool = False
) -> str:
    rows = await connection.execute_fetchall(
        "SELECT max(c.name), max(c.coll) FROM pragma_index_list(?) AS i, "
        'pragma_index_xinfo(i.name) AS c WHERE i."unique" AND NOT i.partial AND c.key '
        "GROUP BY i.name HAVING count(*) = 1 AND max(c.name) IS NOT NULL",
        [table],
    )
    if any(
        _folded(name) == _folded(column) and (not folds or collation.upper() == "NOCASE")
        for name, collation in rows
    ):
        return ""
    index = quoted(f"{table}_{column}{'_nocase' if folds else ''}")
    indexed = f"{quoted(column)}{' COLLATE NOCASE' if folds else ''}"
    return (
        f"no unique index forbids two rows for one query by {quoted(column)}; this one does: "
        f"CREATE UNIQUE INDEX {index} ON {quoted(table)} ({indexed})"
    )


async def _refuse_at_signs(connection: aiosqlite.Connection, options: SqliteOptions) -> None:
    table, column = quoted(options.table), quoted(options.columns.nickname)
    # The range can use an index; one that ignores case takes more than @ for it.
    rows = await connection.execute_fetchall(
        f"SELECT 1 FROM {table} AS u WHERE u.{column} >= '@' AND u.{column} < 'A' "  # noqa: S608 - quoted
        f"AND substr(u.{column}, 1, 1) = '@' LIMIT 1"
    )
    if rows:
        mending = f"UPDATE {table} SET {column} = substr({column}, 2) WHERE {column} LIKE '@%'"  # noqa: S608 - quoted
        raise Broken(
            "some nicknames are stored with @ in front and would never be found; "
            f"this mends them: {mending}"
        )


def _folded(name: str) -> str:
    """As SQLite compares names: the case of ASCII letters does not count."""
    return re.sub("[A-Z]+", lambda match: match[0].lower(), name)


def _listed(wanted: str, names: Iterable[str]) -> str:
    """The missing name, the nearest one, and all that there are."""
    names = list(names)
    near = get_close_matches(wanted, names, n=1)
    hint = f" (did you mean {quoted(near[0])}?)" if near else ""
    return f"{quoted(wanted)}{hint}; there are: {', '.join(map(quoted, names)) or 'none'}"
