"""The relation that the option ``table`` names, and the schemas in which names are looked up.

Both depend on the ``search_path`` of a session, which the role, the database and, behind a pooler,
any other client can change; and temporary tables come first. In an empty table of the same name
no user is found. So the service determines both once, when it has connected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from asyncpg import Connection

from idv_postgres.options import PostgresOptions
from idv_postgres.schema import quoted, quoted_table
from tornado_idv import Broken

# By DEFAULT without what another client of a pooler has set; with temporary tables last.
_SEARCH_PATH = """
SELECT set_config('search_path', concat_ws(', ', string_agg(quote_ident(name), ', ' ORDER BY place),
  'pg_temp'), true)
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s(name, place) WHERE name !~ '^pg_temp'
"""
_RELATION = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, ARRAY(
  SELECT m.nspname::text FROM pg_class AS o JOIN pg_namespace AS m ON m.oid = o.relnamespace
  WHERE o.relname = c.relname AND o.relkind IN ('r', 'p', 'v', 'm', 'f') AND o.oid <> c.oid
    AND m.nspname = ANY (current_schemas(false))) AS others
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)
"""
_IS_RENAMED = """
SELECT EXISTS (SELECT FROM pg_class WHERE oid = $1 AND relname <> $2
  AND relnamespace = quote_ident($3)::regnamespace)
"""
TREE = """
WITH RECURSIVE tree AS ({roots} UNION SELECT next.oid FROM tree, LATERAL (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = tree.oid UNION ALL
  SELECT d.refobjid FROM pg_rewrite AS r
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
  WHERE r.ev_class = tree.oid AND r.ev_type = '1' AND d.refclassid = 'pg_class'::regclass
) AS next(oid))
"""
"""The relations ``roots`` with their partitions, and the tables that views select from."""
_LOCKED = """
SELECT relation AS oid FROM pg_locks WHERE locktype = 'relation' AND pid = pg_backend_pid()
"""
_UNLOGGED = f"""{TREE.format(roots=_LOCKED)}
SELECT oid::regclass::text FROM tree JOIN pg_class USING (oid)
WHERE relpersistence <> 'p' AND relkind <> 'p' ORDER BY 1 LIMIT 1
"""  # noqa: S608 - constants
_SAMPLE = 100
Condition: TypeAlias = Callable[[str], str]
"""Returns the SQL that compares a column with an SQL expression."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view.

    ``others`` are schemas in the ``search_path`` that have one of this name, too. ``sample`` has
    some nicknames, as they are looked up.
    """

    oid: int
    schema: str
    name: str
    others: Sequence[str] = field(compare=False)
    sample: Sequence[str] = field(default=(), compare=False)

    @property
    def sql(self) -> str:
        """The name with its schema, quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


async def set_search_path(connection: Connection) -> str:
    """Set that of the role and database in this transaction, as far as its schemas exist."""
    await connection.execute("SET LOCAL search_path TO DEFAULT")
    return str(await connection.fetchval(_SEARCH_PATH))


async def resolve(
    connection: Connection, options: PostgresOptions, before: Relation | None
) -> Relation:
    """Return what the option ``table`` names.

    Raises `Broken` if there is no such table, or if it is in another schema than ``before``.
    """
    table = quoted_table(options.table)
    row = await connection.fetchrow(_RELATION, table)
    if row is None:
        raise Broken(f"there is no table {table}, or the user of the dsn cannot see it")
    relation = Relation(**row)
    if before is not None and relation.schema != before.schema:
        raise Broken(
            f"{table} is {relation.sql} now, and was {before.sql} when the service started; "
            "write the schema into the option table, and restart the service"
        )
    return relation


async def with_sample(
    connection: Connection, options: PostgresOptions, relation: Relation
) -> Relation:
    """Return the relation with some of its nicknames."""
    column = f'{quoted(options.columns.nickname)}::text COLLATE "C"'
    value = f"lower({column})" if options.folds_nicknames else column
    rows = await connection.fetch(f"SELECT {value} FROM {relation.sql} LIMIT {_SAMPLE}")  # noqa: S608 - quoted
    return replace(relation, sample=[row[0] for row in rows if row[0] is not None])


async def require_same_users(
    connection: Connection, before: Relation, relation: Relation, equals: Condition
) -> None:
    """Raise `Broken` unless a relation may take the place of the one before.

    It may if that one was renamed, as by a job that loads a table and exchanges the names, or if
    it has most of the users that were seen in that one. ``equals`` is for nicknames.
    """
    name_and_schema = (relation.name, relation.schema)
    if relation.sample and await connection.fetchval(_IS_RENAMED, before.oid, *name_and_schema):
        return
    exists = f"EXISTS (SELECT FROM {relation.sql} AS u WHERE {equals('k.value')})"
    count = f"SELECT count(*) FROM unnest($1::text[]) AS k(value) WHERE {exists}"  # noqa: S608 - quoted
    if await connection.fetchval(count, before.sample) * 2 < len(before.sample):
        raise Broken(
            f"{relation.sql} was replaced by another table, which lacks most of its users; restart "
            "the service if this is intended, and exchange tables by ALTER TABLE … RENAME TO"
        )


def shadow_warnings(options: PostgresOptions, relation: Relation) -> list[str]:
    """Return a warning of relations of the same name; raises `Broken` if this one is empty."""
    if "." in options.table or not relation.others:
        return []
    text = (
        f"{quoted(options.table)} is {relation.sql}, and there is another one in the schema "
        f"{', '.join(map(quoted, relation.others))}; write the schema into the option table"
    )
    if not relation.sample:
        raise Broken(f"{text}, since this one is empty")
    return [text]


async def require_logged(connection: Connection) -> None:
    """Raise `Broken` for an UNLOGGED table among those that this transaction has locked."""
    table = await connection.fetchval(_UNLOGGED)
    if table is not None:
        raise Broken(
            f"the table {table} is UNLOGGED: it is empty after a crash of the server, and no user "
            f"would be found; ALTER TABLE {table} SET LOGGED"
        )
