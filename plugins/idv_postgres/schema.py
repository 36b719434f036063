"""The SQL that makes the table of a backend, its unique indexes and its notifications.

Every statement may be run again. The version is a comment on the trigger's function.
"""

from __future__ import annotations

from idv_postgres.options import PostgresOptions


def quoted(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """Quote ``name`` or ``schema.name``."""
    return ".".join(map(quoted, table.split(".")))


VERSION = 1
"""Of the schema; a later version's statements also turn an earlier schema into its own."""
_COMMENT = "tornado-idv schema "
_MAX_ROWS = 100
"""Rows of one statement that are notified one by one; more purge everything."""


def script(options: PostgresOptions) -> str:
    """Return the statements, as one transaction.

    An index by another collation than "C" may miss rows after an update of the operating system.
    """
    columns = options.columns
    table = quoted_table(options.table)
    nickname, card, plan = (
        quoted(name) for name in (columns.nickname, columns.card_number, columns.plan)
    )
    url = quoted(columns.profile_url or "profile_url")
    nickname_key, suffix = (
        (f"lower({nickname})", "_lower") if options.folds_nicknames else (nickname, "")
    )
    base = options.table.rpartition(".")[2]
    nickname_index = quoted(f"{base}_{columns.nickname}{suffix}")
    card_index = quoted(f"{base}_{columns.card_number}")
    return f"""\
BEGIN;
CREATE TABLE IF NOT EXISTS {table} (
    {nickname} text COLLATE "C" NOT NULL,
    {card} text COLLATE "C" NOT NULL,
    {plan} text NOT NULL,
    {url} text
);
CREATE UNIQUE INDEX IF NOT EXISTS {nickname_index} ON {table} ({nickname_key});
CREATE UNIQUE INDEX IF NOT EXISTS {card_index} ON {table} ({card});
{_notifications(options, table, nickname, card)}COMMIT;
"""


def version_query(options: PostgresOptions) -> str:
    """Return the SELECT of the version that the database has: no row, or one."""
    return f"""
SELECT substr(description, {len(_COMMENT) + 1})::int FROM pg_description
WHERE objoid = to_regproc('{_literal(_function(options))}') AND description LIKE '{_COMMENT}%'
"""  # noqa: S608 - quoted


def _function(options: PostgresOptions) -> str:
    """Return the name of the trigger's function, in the schema of the table."""
    schema, dot, base = options.table.rpartition(".")
    return f"{quoted(schema)}{dot}{quoted(f'{base}_notify')}" if dot else quoted(f"{base}_notify")


def _literal(text: str) -> str:
    return text.replace("'", "''")


def _notifications(options: PostgresOptions, table: str, nickname: str, card: str) -> str:
    """Return the statements for a notification of each user that a statement changes.

    Triggers of statements, not of rows: a change of a million rows is one notification.
    """
    function = _function(options)
    channel = _literal(options.notify.channel if options.notify is not None else "idv_users")
    lines = f"""\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $idv$
DECLARE
    payloads text[];
BEGIN
    IF TG_OP IN ('UPDATE', 'DELETE') THEN
        SELECT array_agg(payload) INTO payloads FROM (
            SELECT unnest(ARRAY[{nickname}::text, 'card:' || {card}::text]) AS payload
            FROM old_rows LIMIT {_MAX_ROWS * 2 + 1}) AS changed;
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT payloads || array_agg(payload) INTO payloads FROM (
            SELECT unnest(ARRAY[{nickname}::text, 'card:' || {card}::text]) AS payload
            FROM new_rows LIMIT {_MAX_ROWS * 2 + 1}) AS changed;
    END IF;
    IF TG_OP = 'TRUNCATE' OR cardinality(payloads) > {_MAX_ROWS * 2} THEN
        PERFORM pg_notify('{channel}', '*');
    ELSE
        PERFORM pg_notify('{channel}', payload)
        FROM (SELECT DISTINCT unnest(payloads) AS payload) AS changed WHERE payload IS NOT NULL;
    END IF;
    RETURN NULL;
END $idv$;
COMMENT ON FUNCTION {function}() IS '{_COMMENT}{VERSION}';
"""  # noqa: S608 - quoted
    rows = {
        "insert": "REFERENCING NEW TABLE AS new_rows ",
        "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows ",
        "delete": "REFERENCING OLD TABLE AS old_rows ",
        "truncate": "",
    }
    for event, referencing in rows.items():
        trigger = quoted(f"{options.table.rpartition('.')[2]}_notify_{event}")
        lines += f"""\
DROP TRIGGER IF EXISTS {trigger} ON {table};
CREATE TRIGGER {trigger} AFTER {event.upper()} ON {table} {referencing}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}();
"""
    return lines
