"""The command ``tornado-idv postgres init``: the SQL of the table, its indexes and triggers."""

import asyncio
from pathlib import Path

import click

from idv_postgres.options import NOT_INSTALLED, PostgresOptions, quoted
from tornado_idv import CommandTools, Exit, StartError

_TIMEOUT = 10.0
"""Maximum seconds to connect."""
_MAX_ROWS = 100
"""Maximum number of changed rows to notify one by one. Above it, everything is purged."""
# In other collations than "C", an index may miss rows after an update of the operating system.
_TABLE = """\
BEGIN;
CREATE TABLE IF NOT EXISTS {table} (
    {nickname} text COLLATE "C" NOT NULL,
    {card} text COLLATE "C" NOT NULL,
    {plan} text NOT NULL,
    {url} text
);
"""
# If a partition key does not permit a unique index, the index is not unique.
_INDEX = """\
DO $idv$ BEGIN
    CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} ({key});
EXCEPTION WHEN feature_not_supported THEN
    CREATE INDEX IF NOT EXISTS {index} ON {table} ({key});
END $idv$;
"""
_FUNCTION = """\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $idv$
DECLARE
    payloads text[];
BEGIN
    IF TG_OP = 'TRUNCATE' OR TG_LEVEL = 'ROW' THEN
        PERFORM pg_notify('{channel}', '*');
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN
        SELECT array_agg(payload) INTO payloads FROM (
            SELECT unnest(ARRAY[{nickname}::text, 'card:' || {card}::text]) AS payload
            FROM old_rows LIMIT {more}) AS changed;
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT payloads || array_agg(payload) INTO payloads FROM (
            SELECT unnest(ARRAY[{nickname}::text, 'card:' || {card}::text]) AS payload
            FROM new_rows LIMIT {more}) AS changed;
    END IF;
    IF cardinality(payloads) > {most} THEN
        PERFORM pg_notify('{channel}', '*');
    ELSE
        PERFORM pg_notify('{channel}',
            CASE WHEN octet_length(payload) < 8000 THEN payload ELSE '*' END)
        FROM (SELECT DISTINCT unnest(payloads) AS payload) AS changed WHERE payload IS NOT NULL;
    END IF;
    RETURN NULL;
END $idv$;
"""
# With triggers per statement, a change of a million rows is one notification. They do not fire for
# statements on a partition. So a partitioned table also has a trigger per row, inherited by each
# partition. The server merges its equal notifications in a transaction. ALWAYS means that triggers
# also fire if session_replication_role is replica.
_TRIGGER = """\
DROP TRIGGER IF EXISTS {trigger} ON {table};
CREATE TRIGGER {trigger} AFTER {event} ON {table} {rows}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger};
"""
_ROWS = {
    "insert": "REFERENCING NEW TABLE AS new_rows ",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows ",
    "delete": "REFERENCING OLD TABLE AS old_rows ",
    "truncate": "",
}
_ROW_TRIGGER = """\
DROP TRIGGER IF EXISTS {trigger} ON {table};
DO $idv$ BEGIN
    IF (SELECT relkind = 'p' FROM pg_class WHERE oid = '{name}'::regclass) THEN
        CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {function}();
        ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger};
    END IF;
END $idv$;
"""


def script(options: PostgresOptions) -> str:
    """Return the SQL for the backend's table, as one transaction. A second run changes nothing."""
    columns, (*schema, base) = options.columns, options.table.split(".")
    names = {
        "table": options.quoted_table,
        "nickname": quoted(columns.nickname),
        "card": quoted(columns.card_number),
        "plan": quoted(columns.plan),
        "url": quoted(columns.profile_url or "profile_url"),
        "function": ".".join(map(quoted, [*schema, f"{base}_notify"])),
        "channel": options.channel.replace("'", "''"),
        "name": options.quoted_table.replace("'", "''"),
        "most": _MAX_ROWS * 2,
        "more": _MAX_ROWS * 2 + 1,
    }
    parts = [_TABLE.format_map(names)]
    for _, index, key in options.unique_indexes:
        parts.append(_INDEX.format(index=index, key=key, table=names["table"]))
    parts.append(_FUNCTION.format_map(names))
    # The server keeps 63 bytes of a name. Otherwise each trigger would replace the one before.
    base = base.encode()[:54].decode(errors="ignore")
    for event, rows in _ROWS.items():
        trigger = quoted(f"{base}_notify_{event}")
        parts.append(_TRIGGER.format(**names, trigger=trigger, event=event.upper(), rows=rows))
    parts.append(_ROW_TRIGGER.format(**names, trigger=quoted(f"{base}_notify_row")))
    return f"{''.join(parts)}COMMIT;\n"


def init_database(tools: CommandTools, config: Path, name: str | None, *, apply: bool) -> None:
    """Print the SQL, or run it with ``apply``. Exit with a message on errors."""
    with tools.exit_on_error(Exit.NO):
        backends = [each for each in tools.read_backends(config) if name in {None, each.name}]
        found = [each for each in backends if isinstance(each, PostgresOptions)]
        if not found:
            named = f" with the name {name}" if name else ""
            raise StartError(f"the configuration has no backend of the kind postgres{named}")
        options, *others = found
        if others:
            raise StartError("several backends have the kind postgres; choose one with --name")
        if options.queries:
            raise StartError(f"backend {options.name}: create the tables of your queries yourself")
        if not apply:
            click.echo(script(options), nl=False)
            return
        asyncio.run(_apply(options))
    click.echo(f"backend {options.name}: the table and its notifications are up to date")


async def _apply(options: PostgresOptions) -> None:
    try:
        from idv_postgres.connection import Connector  # noqa: PLC0415 - asyncpg may be missing
        from idv_postgres.errors import to_lookup_failed  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StartError(NOT_INSTALLED) from None
    connector = Connector(options.primary_dsn, timeout=_TIMEOUT, roles=("primary",))
    try:
        with await connector.connect() as connection:
            await connection.execute(script(options))
            await connection.close(timeout=_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - each is mapped
        reason = to_lookup_failed(error, with_message=True).reason
        raise StartError(f"backend {options.name}: {reason}") from None
