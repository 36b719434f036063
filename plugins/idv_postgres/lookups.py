"""The SQL statements of lookups, their validation and their results.

A statement reads a table, or is based on a query of the operator. PostgreSQL's ``=`` may find other
values than requested, depending on the column's type (``citext``, padded ``char``) and collation.
So a lookup compares twice: first by ``=``, with the index, then bytewise.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 ORDER BY a.attnum
"""
_UNIQUE_KEYS = """
SELECT pg_get_indexdef(indexrelid, 1, false) AS key FROM pg_index
WHERE indrelid = $1::text::regclass AND indisunique AND indisvalid AND indpred IS NULL
  AND indnkeyatts = 1
"""
# Functions in pg_catalog read no tables of users.
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
    """The statement for each kind of query. It takes the value as ``$1``, and returns up to 2 rows.

    If the name of the table no longer means ``relation``, the statement fails with `REPLACED`.
    """

    sql: Mapping[type[Query], str]
    batch_sql: Mapping[type[Query], str] = field(default_factory=dict)
    """Statements for several values, for `Batches`. Some kinds of query have none."""
    warnings: Sequence[str] = ()
    """Warnings of the inspection for the log."""
    repeated: Sequence[str] = ()
    """The statements that `Executor.run` may have to repeat, because they call functions."""
    search_path: str = ""
    """The ``search_path`` of the first inspection. It is empty if lookups do not need it."""
    relation: Relation | None = None
    servers: Collection[str] = ()
    """The `Connection.server` of each inspected server at the address of the last one."""


@dataclass(frozen=True, slots=True)
class Column:
    """The description of a column of the table, as read from the server."""

    name: str
    type: str
    is_enum: bool
    type_sql: str
    collation: str | None
    compares_exactly: bool | None


class Result(NamedTuple):
    """The result of a lookup. With a ``reason``, an empty result does not mean "not found"."""

    rows: Sequence[Sequence[Any]]
    reason: str | None = None
    storable: bool = True
    """True if the server has replayed the last notified change. Then the result may be cached."""
    standby: object = None
    """An identifier of the standby and its WAL receiver, or ``None`` for a primary."""
    may_repeat: bool = False
    """True if the standby caught up with its primary during the lookup. A retry is reliable."""
    origin: str = ""
    """The `Connection.server`."""

    @property
    def user(self) -> User | None:
        """The user in the rows, or ``None``. Raises `Broken` for several rows or an invalid row."""
        rows = sorted(self.rows, key=lambda row: (row[2] or "").startswith("@"))
        if rows[1:] and (rows[1][2] or "").lower() != f"@{rows[0][2]}".lower():
            raise Broken("two rows answer one query")
        return to_user(rows[0]) if rows else None  # for an @, an error: the user exists


def to_user(row: Sequence[Any]) -> User:
    """Return the user in a row. Raises `Broken` for an invalid row."""
    plan, card_number, nickname, profile_url = row
    for name, value in (("plan", plan), ("card number", card_number), ("nickname", nickname)):
        if not value:
            raise Broken(f"the {name} of a row is NULL, or empty")
    if profile_url == "":
        raise Broken("the profile URL of a row is empty")
    if nickname.startswith("@"):
        raise Broken("the nickname of a row is stored with a leading @")
    return User(plan, card_number, nickname, profile_url)


async def inspect(connection: Connection, options: PostgresOptions, before: Lookups) -> Lookups:
    """Validate the table or the queries in a transaction, and return the statements.

    ``before`` is the last result. Raises errors of asyncpg, and `Broken` if the table is missing
    or UNLOGGED, has a column that is not text, or may not replace the table in ``before``. If a
    nickname begins with @, this is only a warning, as one row must not prevent other lookups.
    """
    # Without this setting, a client that is cut off keeps its locks, and blocks ALTER TABLE.
    await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
    await connection.execute("SET LOCAL search_path TO DEFAULT")
    path = str(await connection.fetchval(SET_SEARCH_PATH))
    queries = options.queries
    lookups = Lookups({}) if queries else await _of_table(connection, options, before.relation)
    path = before.search_path or path
    await connection.execute(f"SET LOCAL search_path TO {path}")
    own = {kind: await _own_query(connection, kind, query) for kind, query in queries.items()}
    sql, batch_sql = own or lookups.sql, lookups.batch_sql
    # Without this setting, the planner would read all rows of a small table.
    await connection.execute("SET LOCAL enable_seqscan = off")
    plans = {kind: await _explain(connection, each, "x") for kind, each in sql.items()}
    # If a batch reads the whole table for each value, it is not faster than single lookups.
    batch_sql = {
        kind: each
        for kind, each in batch_sql.items()
        if not _reads_all(await _explain(connection, each, ["x"]))
    }
    # A sequential scan of a catalog would cost so much that PostgreSQL compiles it, in 0.2 s.
    await connection.execute("SET LOCAL enable_seqscan TO DEFAULT")
    is_foreign = await require_logged(connection)
    repeated: list[str] = []
    for kind, plan in plans.items():
        # The statement, or a view in it, may call a function that reads tables.
        text = re.sub(r'[\s"\\]', "", sql[kind] + json.dumps(plan, ensure_ascii=False)).lower()
        if is_foreign or await connection.fetchval(_CALLS_FUNCTION, text):
            repeated += [sql[kind], batch_sql.get(kind, "")]
    slow = " or ".join(_NAMES[kind] for kind, plan in plans.items() if _reads_all(plan))
    warnings = [f"a lookup by {slow} reads the whole table; an index is missing"] if slow else []
    warnings += lookups.warnings
    # Behind a pooler, setting the path takes time. Lookups need the path for the operator's queries
    # and functions, and for the operators of citext.
    needs_path = queries or repeated or "citext" in "".join(sql.values())
    path = path if needs_path else ""
    known = {each for each in before.servers if each.startswith(f"{connection.address} ")}
    servers = {*known, connection.server}
    return Lookups(sql, batch_sql, warnings, repeated, path, lookups.relation, servers)


async def _of_table(
    connection: Connection, options: PostgresOptions, before: Relation | None
) -> Lookups:
    names = options.columns
    columns = await read_columns(connection, options)
    nickname, card = columns[names.nickname], columns[names.card_number]
    is_nickname = await _equals(connection, nickname, folds=options.folds_nicknames)
    conditions: dict[type[Query], Condition] = {
        # A nickname that is stored with a leading @ is found, too. See `Result.user`.
        ByNickname: lambda x: "(" + is_nickname(x) + " OR " + is_nickname(f"('@' || {x})") + ")",
        ByCard: await _equals(connection, card),
    }
    relation, warnings = await resolve(connection, options, before, is_nickname)
    if any(each.startswith("@") for each in relation.sample):
        column = quoted(names.nickname)
        repair = f"UPDATE {options.quoted_table} SET {column} = substr({column}, 2)"  # noqa: S608 - quoted
        warnings.append(
            "some nicknames are stored with a leading @, and lookups of their users return 503; "
            f"this repairs them: {repair} WHERE {column} COLLATE \"C\" LIKE '@%'"
        )
    warnings += await _unique_warnings(connection, options, columns)
    # This condition is true if the name still means this relation, and otherwise an error. It costs
    # nothing: the planner evaluates it, and plans again after a change of the relation.
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
    return Lookups(sql, batch_sql, warnings, relation=relation)


async def _explain(connection: Connection, sql: str, value: str | list[str]) -> Any:
    plan = await connection.fetchval(f"EXPLAIN (VERBOSE, FORMAT JSON) {sql}", value)
    return json.loads(plan)[0]["Plan"]


def _reads_all(node: Mapping[str, Any]) -> bool:
    scan = str(node["Node Type"])
    by_index = "Index" in scan and "Index Cond" not in node
    return scan == "Seq Scan" or by_index or any(map(_reads_all, node.get("Plans", ())))


async def _own_query(connection: Connection, kind: type[Query], query: str) -> str:
    """Return the statement for an operator's query. Raises `Broken` for wrong types or columns."""
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
    own = 'q.plan::text, (q.card_number COLLATE "C")::text, (q.nickname COLLATE "C")::text'
    return f"SELECT {own}, {url} FROM (\n{query}\n) AS q LIMIT 2"  # noqa: S608 - the operator's SQL, with the collation as in `select_users`


def select_users(
    options: PostgresOptions, columns: Collection[str], table: str | None = None
) -> str:
    """Return a SELECT of all users with the columns for `to_user`. ``u`` is the table's alias."""
    table = table or options.quoted_table
    names, url = options.columns, options.columns.profile_url or "profile_url"
    own = [f"u.{quoted(names.plan)}::text"]
    # If a column has become a number, and lost leading zeros, the collation causes an error.
    identifiers = (names.card_number, names.nickname)
    own += [f'(u.{quoted(each)} COLLATE "C")::text' for each in identifiers]
    own.append(f"u.{quoted(url)}::text" if url in columns else "NULL")
    return f"SELECT {', '.join(own)} FROM {table} AS u"  # noqa: S608 - quoted


async def read_columns(connection: Connection, options: PostgresOptions) -> dict[str, Column]:
    """Return the columns of the table. Raises `Broken` for a column that is missing or not text."""
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
    identifiers = (names.nickname, names.card_number)
    for name in (*identifiers, names.plan, names.profile_url or "profile_url"):
        column = columns.get(name)
        if column is None or column.type in _COLUMN_TYPES:
            continue
        if name in identifiers or not column.is_enum:
            raise Broken(
                f"the column {quoted(name)} has the type {column.type_sql}, not text; "
                "numbers lose leading zeros: change the column to text and load the users again"
            )
    return columns


async def _equals(connection: Connection, column: Column, *, folds: bool = False) -> Condition:
    """Return the comparison of a column. With ``folds``, it ignores the case of ASCII letters.

    The first part of a comparison can use an index of the column. The second part is exact. It
    folds the case by ``COLLATE "C"``, because a Turkish collation does not fold I to i.
    """
    name = f"u.{quoted(column.name)}"
    if not folds and column.compares_exactly:
        return lambda value: f"{name} = {value}"
    if not folds:
        # In a cast, "character" without a length would mean a single character.
        cast = {"bpchar": "::bpchar", "citext": f"::{column.type_sql}"}.get(column.type, "")
        return lambda value: f'{name} = {value}{cast} AND {name}::text COLLATE "C" = {value}'
    exact = f'lower({name}::text COLLATE "C")'
    # citext compares by the collation of the database, not of the column.
    collation = '"default"' if column.type == "citext" else column.collation or '"default"'
    folded = await connection.fetchval(f"SELECT lower('{_UPPER}'::text COLLATE {collation})")
    if folded != _UPPER.lower():
        return lambda value: f"{exact} = {value}"
    if column.type == "citext":
        return lambda value: f"{name} = {value}::{column.type_sql} AND {exact} = {value}"
    return lambda value: f"lower({name}) = {value} AND {exact} = {value}"


async def _unique_warnings(
    connection: Connection, options: PostgresOptions, columns: Mapping[str, Column]
) -> list[str]:
    """Return a warning for each missing unique index. Without it, two rows could match a query."""
    table = options.quoted_table
    query = "SELECT relkind::text FROM pg_class WHERE oid = $1::text::regclass"
    # Only plain tables are checked: a partitioned table may not permit a unique index.
    if await connection.fetchval(query, table) != "r":
        return []
    keys = {_plain(row["key"]) for row in await connection.fetch(_UNIQUE_KEYS, table)}
    warnings = []
    for column, index, key in options.unique_indexes:
        plain = _plain(quoted(column))
        # Except for citext, an index of the column permits nicknames that differ only in case.
        is_enough = key == quoted(column) or columns[column].type == "citext"
        if f"lower{plain}" not in keys and not (is_enough and plain in keys):
            warnings.append(
                f"a lookup by {quoted(column)} may find two rows, because a unique index is "
                f"missing; create one: CREATE UNIQUE INDEX {index} ON {table} ({key})"
            )
    return warnings


def _plain(key: str) -> str:
    """Return an index key without casts, collation, parentheses and quotes, to compare keys."""
    return re.sub(r'::("[^"]*"|\w+)|COLLATE "C"|[()"\s]', "", key)
