"""The SQL of lookups, for a table or for the operator's own queries, and their validation.

PostgreSQL's own ``=`` follows the column's collation or type (``citext``, padded ``char``, a
nondeterministic collation), and finds more than the exact value. So a lookup compares twice: as
the column does, which can use its index, and then byte by byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

from asyncpg import Connection

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted, quoted_table
from tornado_idv import Broken, ByCard, ByNickname, Query, User

_NAMES: dict[type[Query], str] = {ByNickname: "nickname", ByCard: "card number"}
_TEXT_TYPES = {"text", "varchar", "bpchar", "citext"}
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AT_SIGN_SAMPLE = 100
"""Rows in which nicknames with @ are looked for: a table that has them has them in most rows."""

_COLUMNS = """
SELECT a.attname AS name, coalesce(b.typname, t.typname)::text AS type, t.typtype = 'e' AS is_enum,
  coalesce(b.oid, t.oid)::regtype::text AS type_sql,
  quote_ident(n.nspname) || '.' || quote_ident(l.collname) AS collation
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_type AS b ON b.oid = nullif(t.typbasetype, 0)
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
  LEFT JOIN pg_namespace AS n ON n.oid = l.collnamespace
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE_KEYS = """
SELECT pg_get_indexdef(indexrelid, 1, false) AS key FROM pg_index
WHERE indrelid = $1::text::regclass AND indisunique AND indisvalid AND indpred IS NULL
  AND indnkeyatts = 1
"""
_FOR_EACH_VALUE = (
    "SELECT k.place, q.* FROM unnest($1::text[]) WITH ORDINALITY AS k(value, place), LATERAL "
)
_Condition: TypeAlias = Callable[[str], str]
"""Returns the SQL that compares a column with an SQL expression."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """The statement of each kind of query, with the value as ``$1``; returns two rows at most.

    ``batch_sql`` are statements for several values, as `Batches` needs them; not for every kind.
    ``warnings`` are sentences for the log. ``has_at_signs`` is whether nicknames with @ in front
    were seen.
    """

    sql: Mapping[type[Query], str]
    batch_sql: Mapping[type[Query], str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    has_at_signs: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table as the server describes it."""

    name: str
    type: str
    is_enum: bool
    type_sql: str
    collation: str | None

    def require_text(self, *, enum: bool = False) -> None:
        if self.type not in _TEXT_TYPES and not (enum and self.is_enum):
            raise Broken(
                f"the column {quoted(self.name)} has the type {self.type_sql}, not text; "
                "numbers lose zeros in front: change the column to text and load the users again"
            )


def only_user(rows: Sequence[Sequence[Any]]) -> User | None:
    """Return the user in a lookup's rows; raises `Broken` if there are several or a bad one."""
    if len(rows) > 1:
        raise Broken("two rows answer one query")
    return to_user(rows[0]) if rows else None


def to_user(row: Sequence[Any]) -> User:
    """Return the user in a row; raises `Broken` for a bad one."""
    plan, card_number, nickname, profile_url = row
    for name, value in (("plan", plan), ("card number", card_number), ("nickname", nickname)):
        if not value:
            raise Broken(f"the {name} of a row is NULL, or empty")
    if profile_url == "":
        raise Broken("the profile URL of a row is empty")
    return User(plan, card_number, nickname, profile_url)


async def inspect(connection: Connection, options: PostgresOptions) -> Lookups:
    """Validate the table or the queries, in a transaction.

    Raises `Broken` for what is missing or not text, and whatever asyncpg raises. A nickname with @
    is a warning: one row that is added must not fail all other lookups, nor the next start.
    """
    queries = options.queries.items()
    sql = {kind: await _own_query(connection, kind, query) for kind, query in queries}
    batch_sql: dict[type[Query], str] = {}
    warnings: list[str] = []
    has_at_signs = False
    if not sql:
        columns = await read_columns(connection, options)
        warnings = await _at_sign_warnings(connection, options)
        has_at_signs = bool(warnings)
        warnings += await _unique_warnings(connection, options, columns)
        select = f"{select_users(options, columns)} WHERE"
        names = options.columns
        for kind, name, folds in (
            (ByNickname, names.nickname, options.folds_nicknames),
            (ByCard, names.card_number, False),
        ):
            equals = await _equals(connection, columns[name], folds=folds)
            sql[kind] = f"{select} {equals('$1::text')} LIMIT 2"
            several = f"{_FOR_EACH_VALUE}({select} {equals('k.value')} LIMIT 2) AS q"
            # One that reads the whole table for each value would take as long as all of them.
            if not await _scans(connection, several, ["x"]):
                batch_sql[kind] = several
    slow = [_NAMES[kind] for kind, each in sql.items() if await _scans(connection, each, "x")]
    if slow:
        slow_ones = " or ".join(slow)
        warnings.insert(0, f"a lookup by {slow_ones} reads the whole table; an index is missing")
    return Lookups(sql, batch_sql, warnings, has_at_signs)


async def _own_query(connection: Connection, kind: type[Query], query: str) -> str:
    """Return the operator's query as a lookup; raises `Broken` if it does not fit."""
    option = "by_nickname" if kind is ByNickname else "by_card"
    query = query.strip().removesuffix(";")
    statement = await connection.prepare(query, name="")
    if [each.name for each in statement.get_parameters()] not in [[name] for name in _TEXT_TYPES]:
        raise Broken(f"{option}: must have one parameter, $1, of type text; write $1::text")
    columns = {each.name: each.type for each in statement.get_attributes()}
    missing = {"nickname", "card_number", "plan"} - columns.keys()
    if missing:
        raise Broken(f"{option}: must return the columns {', '.join(sorted(missing))}, too")
    for name in ("nickname", "card_number"):
        if columns[name].name not in _TEXT_TYPES:
            raise Broken(f"{option}: the column {name} is {columns[name].name}, not text")
    url = "q.profile_url::text" if "profile_url" in columns else "NULL"
    selected = f"q.plan::text, q.card_number::text, q.nickname::text, {url}"
    return f"SELECT {selected} FROM (\n{query}\n) AS q LIMIT 2"  # noqa: S608 - the operator's SQL


def select_users(options: PostgresOptions, columns: Collection[str]) -> str:
    """Return the SELECT of all rows as `to_user` takes them, from the table as ``u``."""
    names, url = options.columns, options.columns.profile_url or "profile_url"
    own = [f"u.{quoted(names.plan)}::text"]
    # A collation is an error for a number, which a column may have become: its zeros are lost.
    identifiers = (names.card_number, names.nickname)
    own += [f'(u.{quoted(each)} COLLATE "C")::text' for each in identifiers]
    own.append(f"u.{quoted(url)}::text" if url in columns else "NULL")
    return f"SELECT {', '.join(own)} FROM {quoted_table(options.table)} AS u"  # noqa: S608 - quoted


async def read_columns(connection: Connection, options: PostgresOptions) -> dict[str, Column]:
    """Return the columns of the table; raises `Broken` for one that is missing or not text."""
    table, names = quoted_table(options.table), options.columns
    if await connection.fetchval("SELECT to_regclass($1::text) IS NULL", table):
        raise Broken(f"there is no table {table}, or the user of the dsn cannot see it")
    rows = await connection.fetch(_COLUMNS, table)
    columns = {row["name"]: Column(**row) for row in rows}
    for name in names.model_dump(exclude_none=True).values():
        if name not in columns:
            near = get_close_matches(name, columns, n=1)
            hint = f" (did you mean {quoted(near[0])}?)" if near else ""
            there = ", ".join(map(quoted, columns)) or "none"
            raise Broken(f"{table} has no column {quoted(name)}{hint}; there are: {there}")
    columns[names.nickname].require_text()
    columns[names.card_number].require_text()
    for name in (names.plan, names.profile_url or "profile_url"):
        if name in columns:
            columns[name].require_text(enum=True)
    return columns


async def _equals(connection: Connection, column: Column, *, folds: bool) -> _Condition:
    """Return the condition that a column is a value: to the byte, or but for the case of ASCII.

    The first comparison of folded values is what indexes are usually made on. A collation like
    that of Turkish makes another letter of an ASCII one; there only ``COLLATE "C"`` folds as this
    service does.
    """
    name = f"u.{quoted(column.name)}"
    if not folds:
        # The type named "character" is that of one character.
        cast = {"bpchar": "::bpchar", "citext": f"::{column.type_sql}"}.get(column.type, "")
        return lambda value: f'{name} = {value}{cast} AND {name}::text COLLATE "C" = {value}'
    exact = f'lower({name}::text COLLATE "C")'
    collation = column.collation or '"default"'
    folded = await connection.fetchval(f"SELECT lower('{_UPPER}'::text COLLATE {collation})")
    if folded != _UPPER.lower():
        return lambda value: f"{exact} = {value}"
    if column.type == "citext":
        return lambda value: f"{name} = {value}::{column.type_sql} AND {exact} = {value}"
    return lambda value: f"lower({name}) = {value} AND {exact} = {value}"


async def _scans(connection: Connection, sql: str, value: str | list[str]) -> bool:
    """Return whether a lookup reads a whole table, also when it will have grown."""
    # For a table of a few rows the planner prefers to read them all.
    await connection.execute("SET LOCAL enable_seqscan = off")
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", value))
    return _reads_all(plan["Plan"])


def _reads_all(node: Mapping[str, Any]) -> bool:
    scan = str(node["Node Type"])
    by_index = "Index" in scan and "Index Cond" not in node
    return scan == "Seq Scan" or by_index or any(map(_reads_all, node.get("Plans", ())))


async def _unique_warnings(
    connection: Connection, options: PostgresOptions, columns: Mapping[str, Column]
) -> list[str]:
    """Return the statements that make two rows for one query impossible, unless they are."""
    table, names = quoted_table(options.table), options.columns
    query = "SELECT relkind::text FROM pg_class WHERE oid = $1::text::regclass"
    if await connection.fetchval(query, table) not in {"r", "p"}:
        return []
    keys = {_plain(row["key"]) for row in await connection.fetch(_UNIQUE_KEYS, table)}
    warnings = []
    for name, folds in ((names.nickname, options.folds_nicknames), (names.card_number, False)):
        plain = _plain(quoted(name))
        any_case = folds and columns[name].type != "citext"
        if f"lower{plain}" in keys or (plain in keys and not any_case):
            continue
        index = quoted(f"{options.table.rpartition('.')[2]}_{name}{'_lower' if folds else ''}")
        key = f"lower({quoted(name)})" if folds else quoted(name)
        warnings.append(
            f"no unique index forbids two rows for one query by {quoted(name)}; this one does: "
            f"CREATE UNIQUE INDEX {index} ON {table} ({key})"
        )
    return warnings


def _plain(key: str) -> str:
    """Reduce an index key, as the server prints it, to its function and column."""
    return re.sub(r'::("[^"]*"|\w+)|COLLATE "C"|[()"\s]', "", key)


async def _at_sign_warnings(connection: Connection, options: PostgresOptions) -> list[str]:
    table, column = quoted_table(options.table), quoted(options.columns.nickname)
    found = await connection.fetchval(
        f"SELECT EXISTS (SELECT FROM (SELECT {column}::text AS nickname FROM {table} "  # noqa: S608 - quoted
        f"LIMIT {_AT_SIGN_SAMPLE}) AS u WHERE nickname LIKE '@%')"
    )
    if not found:
        return []
    repair = f"UPDATE {table} SET {column} = substr({column}, 2) WHERE {column} LIKE '@%'"  # noqa: S608 - quoted
    warning = "some nicknames are stored with @ in front, and their users are answered 503"
    return [f"{warning}; this repairs them: {repair}"]
