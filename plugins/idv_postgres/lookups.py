"""The SQL of lookups, for a table or for the operator's own queries, its validation and results.

PostgreSQL's ``=`` follows the column's collation or type (``citext``, padded ``char``, a
nondeterministic collation), and finds more than the exact value. So a lookup compares twice: like
the column, by its index, and then byte by byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from asyncpg import Connection

from idv_postgres.errors import REPLACED
from idv_postgres.options import PostgresOptions, quoted
from idv_postgres.relation import SET_SEARCH_PATH, Condition, Relation, require_logged, resolve
from tornado_idv import Broken, ByCard, ByNickname, Query, User

_NAMES: dict[type[Query], str] = {ByNickname: "nickname", ByCard: "card number"}
_TEXT_TYPES = {"text", "varchar", "bpchar", "citext"}
_COLUMN_TYPES = _TEXT_TYPES | {"name"}
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLUMNS = """
WITH RECURSIVE base AS (
  SELECT a.attnum, t.* FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
  WHERE a.attrelid = $1::text::regclass
  UNION ALL SELECT d.attnum, t.* FROM base AS d JOIN pg_type AS t ON t.oid = d.typbasetype)
SELECT a.attname AS name, b.typname::text AS type, b.typtype = 'e' AS is_enum,
  b.oid::regtype::text AS type_sql,
  quote_ident(n.nspname) || '.' || quote_ident(l.collname) AS collation,
  b.typname IN ('text', 'varchar', 'name') AND l.collisdeterministic AS compares_exactly
FROM pg_attribute AS a JOIN base AS b ON b.attnum = a.attnum AND b.typtype <> 'd'
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
  LEFT JOIN pg_namespace AS n ON n.oid = l.collnamespace
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE_KEYS = """
SELECT pg_get_indexdef(indexrelid, 1, false) AS key FROM pg_index
WHERE indrelid = $1::text::regclass AND indisunique AND indisvalid AND indpred IS NULL
  AND indnkeyatts = 1
"""
# SQL functions of the server itself read no tables.
_CALLS_FUNCTION = """
SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
  WHERE l.lanname NOT IN ('internal', 'c') AND p.pronamespace <> 'pg_catalog'::regnamespace
    AND strpos($1, lower(translate(p.proname, E' \t"\\\\', '')) || '(') > 0)
"""
_FOR_EACH_VALUE = (
    "SELECT k.place, q.* FROM unnest($1::text[]) WITH ORDINALITY AS k(value, place), LATERAL "
)


@dataclass(frozen=True, slots=True)
class Lookups:
    """The statement of each kind of query, with the value as ``$1``; returns two rows at most.

    It raises an error with the text `REPLACED` if the table is not ``relation``.
    """

    sql: Mapping[type[Query], str]
    batch_sql: Mapping[type[Query], str] = field(default_factory=dict)
    """Statements for several values, for `Batches`. Some kinds of query have none."""
    warnings: Sequence[str] = ()
    """Sentences for the log."""
    has_at_signs: bool = False
    """Whether a nickname with a leading @ was seen."""
    repeated: Sequence[str] = ()
    """The statements that `Executor.run` must repeat."""
    search_path: str = ""
    """The ``search_path`` of the first start; empty if lookups do not depend on it."""
    relation: Relation | None = None
    address: str = ""
    """The server of this inspection."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table as the server describes it."""

    name: str
    type: str
    is_enum: bool
    type_sql: str
    collation: str | None
    compares_exactly: bool | None

    def require_text(self, *, enum: bool = False) -> None:
        if self.type not in _COLUMN_TYPES and not (enum and self.is_enum):
            raise Broken(
                f"the column {quoted(self.name)} has the type {self.type_sql}, not text; "
                "numbers lose leading zeros: change the column to text and load the users again"
            )


class Result(NamedTuple):
    """The rows of a lookup; with a ``reason``, no rows do not mean "not found"."""

    rows: Sequence[Sequence[Any]]
    reason: str | None = None
    storable: bool = True
    """Whether the result is as new as the last change with a notification."""
    standby: object = None
    """The server and its WAL receiver; ``None`` for a primary."""
    may_repeat: bool = False
    """Whether the same lookup would be reliable now: the standby has caught up during it."""
    address: str = ""
    origin: str = ""
    """`Connection.address` and `Connection.server`."""

    @property
    def user(self) -> User | None:
        """The user in the rows; raises `Broken` for several rows, and for a bad one."""
        if len(self.rows) > 1:
            raise Broken("two rows answer one query")
        return to_user(self.rows[0]) if self.rows else None


def to_user(row: Sequence[Any]) -> User:
    """Return the user in a row; raises `Broken` for a bad one."""
    plan, card_number, nickname, profile_url = row
    for name, value in (("plan", plan), ("card number", card_number), ("nickname", nickname)):
        if not value:
            raise Broken(f"the {name} of a row is NULL, or empty")
    if profile_url == "":
        raise Broken("the profile URL of a row is empty")
    return User(plan, card_number, nickname, profile_url)


async def inspect(connection: Connection, options: PostgresOptions, before: Lookups) -> Lookups:
    """Validate the table or the queries, in a transaction; ``before`` are earlier lookups.

    Raises `Broken` for a missing or UNLOGGED table, for columns without text and for another table
    than before, and errors of asyncpg. A nickname with @ is a warning, because a single new row
    must not fail all other lookups or the next start.
    """
    # Without this a client that is cut off keeps its locks, and ALTER TABLE waits for hours.
    await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
    await connection.execute("SET LOCAL search_path TO DEFAULT")
    path = str(await connection.fetchval(SET_SEARCH_PATH))
    queries = options.queries
    lookups = Lookups({}) if queries else await _of_table(connection, options, before.relation)
    if before.search_path:
        path = before.search_path
        await connection.execute(f"SET LOCAL search_path TO {path}")
    own = {kind: await _own_query(connection, kind, query) for kind, query in queries.items()}
    sql, batch_sql = own or lookups.sql, lookups.batch_sql
    # For a table of a few rows the planner prefers to read them all.
    await connection.execute("SET LOCAL enable_seqscan = off")
    plans = {kind: await _explain(connection, each, "x") for kind, each in sql.items()}
    # A batch that reads the whole table for each value takes as long as its lookups.
    batch_sql = {
        kind: each
        for kind, each in batch_sql.items()
        if not _reads_all(await _explain(connection, each, ["x"]))
    }
    await connection.execute("SET LOCAL enable_seqscan TO DEFAULT")
    repeated: list[str] = []
    for kind, plan in plans.items():
        # The lookup itself, or a view that it reads, may call a function that reads tables.
        text = re.sub(r'[\s"\\]', "", sql[kind] + json.dumps(plan, ensure_ascii=False)).lower()
        if await connection.fetchval(_CALLS_FUNCTION, text):
            repeated += [sql[kind], batch_sql.get(kind, "")]
    slow = " or ".join(_NAMES[kind] for kind, plan in plans.items() if _reads_all(plan))
    warnings = list(lookups.warnings)
    if slow:
        warnings.insert(0, f"a lookup by {slow} reads the whole table; an index is missing")
    await require_logged(connection)
    # Behind a pooler to set the path takes time. Operators of citext are found by it, too.
    needs_path = queries or repeated or "citext" in "".join(sql.values())
    lookups = replace(lookups, sql=sql, batch_sql=batch_sql, warnings=warnings, repeated=repeated)
    return replace(lookups, search_path=path if needs_path else "", address=connection.address)


async def _of_table(
    connection: Connection, options: PostgresOptions, before: Relation | None
) -> Lookups:
    names = options.columns
    columns = await read_columns(connection, options)
    nickname, card = columns[names.nickname], columns[names.card_number]
    conditions: dict[type[Query], Condition] = {
        ByNickname: await _equals(connection, nickname, folds=options.folds_nicknames),
        ByCard: await _equals(connection, card),
    }
    relation, warnings = await resolve(connection, options, before, conditions[ByNickname])
    has_at_signs = any(each.startswith("@") for each in relation.sample)
    if has_at_signs:
        column = quoted(names.nickname)
        repair = f"UPDATE {options.quoted_table} SET {column} = substr({column}, 2)"  # noqa: S608 - quoted
        warnings.append(
            "some nicknames are stored with a leading @, and lookups of their users return 503; "
            f"this repairs them: {repair} WHERE {column} COLLATE \"C\" LIKE '@%'"
        )
    warnings += await _unique_warnings(connection, options, columns)
    # True if the name still means this relation, and otherwise an error. The planner evaluates it,
    # and plans the statement again after each change of the relation.
    name = relation.sql.replace("'", "''")
    is_same = (
        f"CASE WHEN '{name}'::regclass = {relation.oid} THEN true ELSE '{REPLACED}'::text::bool END"
    )
    select = f"{select_users(options, columns, relation.sql)} WHERE {is_same} AND"
    sql: dict[type[Query], str] = {}
    batch_sql: dict[type[Query], str] = {}
    for kind, equals in conditions.items():
        sql[kind] = f"{select} {equals('$1::text')} LIMIT 2"
        batch_sql[kind] = f"{_FOR_EACH_VALUE}({select} {equals('k.value')} LIMIT 2) AS q"
    return Lookups(sql, batch_sql, warnings, has_at_signs, relation=relation)


async def _explain(connection: Connection, sql: str, value: str | list[str]) -> Any:
    plan = await connection.fetchval(f"EXPLAIN (VERBOSE, FORMAT JSON) {sql}", value)
    return json.loads(plan)[0]["Plan"]


def _reads_all(node: Mapping[str, Any]) -> bool:
    """Return whether a plan reads a whole table."""
    scan = str(node["Node Type"])
    by_index = "Index" in scan and "Index Cond" not in node
    return scan == "Seq Scan" or by_index or any(map(_reads_all, node.get("Plans", ())))


async def _own_query(connection: Connection, kind: type[Query], query: str) -> str:
    """Return the operator's query as a lookup; raises `Broken` for wrong types and columns."""
    option = "by_nickname" if kind is ByNickname else "by_card"
    query = query.strip().removesuffix(";")
    statement = await connection.prepare(query)
    if [each.name for each in statement.get_parameters()] not in [[name] for name in _TEXT_TYPES]:
        raise Broken(f"{option}: must have one parameter, $1, of type text; write $1::text")
    columns = {each.name: each.type for each in statement.get_attributes()}
    missing = {"nickname", "card_number", "plan"} - columns.keys()
    if missing:
        raise Broken(f"{option}: must return the columns {', '.join(sorted(missing))}, too")
    for name in ("nickname", "card_number"):
        if columns[name].name not in _COLUMN_TYPES:
            raise Broken(f"{option}: the column {name} is {columns[name].name}, not text")
    url = "q.profile_url::text" if "profile_url" in columns else "NULL"
    selected = f"q.plan::text, q.card_number::text, q.nickname::text, {url}"
    return f"SELECT {selected} FROM (\n{query}\n) AS q LIMIT 2"  # noqa: S608 - the operator's SQL


def select_users(
    options: PostgresOptions, columns: Collection[str], table: str | None = None
) -> str:
    """Return the SELECT of all rows for `to_user`, from the table as ``u``."""
    table = table or options.quoted_table
    names, url = options.columns, options.columns.profile_url or "profile_url"
    own = [f"u.{quoted(names.plan)}::text"]
    # A column may have become a number, and lost its zeros: for it a collation is an error.
    identifiers = (names.card_number, names.nickname)
    own += [f'(u.{quoted(each)} COLLATE "C")::text' for each in identifiers]
    own.append(f"u.{quoted(url)}::text" if url in columns else "NULL")
    return f"SELECT {', '.join(own)} FROM {table} AS u"  # noqa: S608 - quoted


async def read_columns(connection: Connection, options: PostgresOptions) -> dict[str, Column]:
    """Return the columns of the table; raises `Broken` if one is missing or has no text."""
    table, names = options.quoted_table, options.columns
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


async def _equals(connection: Connection, column: Column, *, folds: bool = False) -> Condition:
    """Return a comparison of the column: exact, or, with ``folds``, ignoring the case of ASCII.

    The first comparison of folded values uses the usual index. A Turkish collation turns an ASCII
    letter into another letter. There only ``COLLATE "C"`` folds like this service.
    """
    name = f"u.{quoted(column.name)}"
    if not folds and column.compares_exactly:
        return lambda value: f"{name} = {value}"
    if not folds:
        # The type "character" without a length means one character.
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


async def _unique_warnings(
    connection: Connection, options: PostgresOptions, columns: Mapping[str, Column]
) -> list[str]:
    """Return a warning for each missing unique index, because two rows could match a query."""
    table = options.quoted_table
    query = "SELECT relkind::text FROM pg_class WHERE oid = $1::text::regclass"
    # The key of a partitioned table may allow no unique index.
    if await connection.fetchval(query, table) != "r":
        return []
    keys = {_plain(row["key"]) for row in await connection.fetch(_UNIQUE_KEYS, table)}
    warnings = []
    for column, index, key in options.unique_indexes:
        plain = _plain(quoted(column))
        # An index of the column itself allows the nickname in two cases, except for citext.
        is_enough = key == quoted(column) or columns[column].type == "citext"
        if f"lower{plain}" not in keys and not (is_enough and plain in keys):
            warnings.append(
                f"no unique index forbids two rows for one query by {quoted(column)}; this one "
                f"does: CREATE UNIQUE INDEX {index} ON {table} ({key})"
            )
    return warnings


def _plain(key: str) -> str:
    """Reduce an index key, as the server prints it, to its function and column."""
    return re.sub(r'::("[^"]*"|\w+)|COLLATE "C"|[()"\s]', "", key)
