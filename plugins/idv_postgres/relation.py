"""The resolution of the option ``table`` to a relation, and of the ``search_path``.

The relation depends on the ``search_path`` of a session. This path may come from the role, the
database or, behind a pooler, another client. With another path, the name may mean an empty table,
and no user would be found. So relation and path are determined once, after connecting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from asyncpg import Connection

from idv_postgres.options import PostgresOptions, quoted
from tornado_idv import Broken

SET_SEARCH_PATH = """
SELECT set_config('search_path', concat_ws(', ', string_agg(quote_ident(name), ', ' ORDER BY place),
  'pg_temp'), true)
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s(name, place) WHERE name !~ '^pg_temp'
"""
"""SQL that removes missing schemas from a transaction's ``search_path``. ``pg_temp`` is last."""
SERVER = """SELECT concat(pg_catalog.pg_postmaster_start_time(), ' ', oid)
FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"""
_RELATION = f"""
SELECT oid, relnamespace::regnamespace || '.' || quote_ident(relname), ARRAY(
  SELECT name FROM unnest(current_schemas(false)) AS s(name)
  WHERE to_regclass(format('%I.%I', name, relname)) <> oid), ({SERVER})
FROM pg_class WHERE oid = to_regclass($1::text)
"""  # noqa: S608 - constants
_IS_RENAMED = """
SELECT EXISTS (SELECT FROM pg_class AS a JOIN pg_class AS b USING (relnamespace)
  WHERE a.oid = $1 AND b.oid = $2)
"""
TREE = """
WITH RECURSIVE tree AS ({roots} UNION SELECT next.oid FROM tree, LATERAL (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = tree.oid UNION ALL
  SELECT d.refobjid FROM pg_rewrite AS r
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
  WHERE r.ev_class = tree.oid AND r.ev_type = '1' AND d.refclassid = 'pg_class'::regclass
) AS next(oid))
"""
"""A CTE of the relations in the query ``roots``, their partitions, and tables that views read."""
_LOCKED = """
SELECT relation AS oid FROM pg_locks WHERE locktype = 'relation' AND pid = pg_backend_pid()
"""
_KINDS = f"""{TREE.format(roots=_LOCKED)}
SELECT min(oid::regclass::text) FILTER (WHERE relpersistence <> 'p' AND relkind <> 'p'),
  bool_or(relkind = 'f') FROM tree JOIN pg_class USING (oid)
"""  # noqa: S608 - constants
Condition: TypeAlias = Callable[[str], str]
"""A function that returns the SQL to compare a column with an SQL expression."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view of users."""

    oid: int
    sql: str
    """The name with the schema, quoted if necessary."""
    sample: Sequence[str] = field(compare=False)
    """Some nicknames, to compare with a later table. In lower case if lookups ignore the case."""
    server: str = field(compare=False)
    """The identity of server and database. In another one, ``oid`` may mean another table."""


async def resolve(
    connection: Connection, options: PostgresOptions, before: Relation | None, equals: Condition
) -> tuple[Relation, list[str]]:
    """Return the relation that ``table`` names, and a warning if another schema has this name.

    ``equals`` compares nicknames. ``before`` is the relation of the last inspection. Raises
    `Broken` if the relation may not replace ``before``, or is empty and there is a warning.
    """
    table, column = options.quoted_table, f"{quoted(options.columns.nickname)}::text"
    value = f'lower({column} COLLATE "C")' if options.folds_nicknames else column
    # This locks the relation. Its name cannot change until the end of the transaction.
    rows = await connection.fetch(f"SELECT {value} FROM {table} LIMIT 100")  # noqa: S608 - quoted
    oid, sql, others, server = await connection.fetchrow(_RELATION, table)
    relation = Relation(oid, sql, [row[0] for row in rows if row[0] is not None], server)
    if before is not None and before.sql != sql:
        raise Broken(
            f"{table} is {sql} now, but meant {before.sql} when the service started; "
            "name the schema in the option `table`, and restart the service"
        )
    if before is not None and (before.oid, before.server) != (oid, server):
        await _require_same_users(connection, before, relation, equals)
    if "." in options.table or not others:
        return relation, []
    text = (
        f"{table} is {sql}, and there is another table of this name in the schema "
        f"{', '.join(map(quoted, others))}; name the schema in the option `table`"
    )
    if not relation.sample:
        raise Broken(f"{text}, since {sql} is empty")
    return relation, [text]


async def _require_same_users(
    connection: Connection, before: Relation, relation: Relation, equals: Condition
) -> None:
    """Raise `Broken` unless ``relation`` may replace ``before``, the last relation.

    If the old table is still in the schema, a job has exchanged the names of both tables, and one
    user is enough. Otherwise, ``relation`` must have half of the users in ``before.sample``.
    """
    may_be_renamed = relation.sample and before.server == relation.server
    if may_be_renamed and await connection.fetchval(_IS_RENAMED, before.oid, relation.oid):
        return
    exists = f"EXISTS (SELECT FROM {relation.sql} AS u WHERE {equals('k.value')})"
    count = f"SELECT count(*) FROM unnest($1::text[]) AS k(value) WHERE {exists}"  # noqa: S608 - quoted
    # An empty table is rejected: it has no sample, so any later table would be accepted.
    found = await connection.fetchval(count, before.sample) if relation.sample else 0
    if found * 2 < len(before.sample):
        raise Broken(
            f"{relation.sql} was replaced by a table that lacks most of the old users; if this is "
            "intended, restart the service; next time, exchange tables by ALTER TABLE … RENAME TO"
        )


async def require_logged(connection: Connection) -> bool:
    """Return whether this transaction locked a foreign table. Raises `Broken` for UNLOGGED ones."""
    table, is_foreign = await connection.fetchrow(_KINDS)
    if table is not None:
        raise Broken(
            f"the table {table} is UNLOGGED: it is empty after a crash of the server, and no user "
            f"would be found; ALTER TABLE {table} SET LOGGED"
        )
    return bool(is_foreign)
