"""The SQL that makes the table of a backend, its unique indexes and its notifications.

Every statement may be run again.
"""

from __future__ import annotations

from idv_postgres.options import NotifyOptions, PostgresOptions
from idv_postgres.quoting import quoted, quoted_table

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
{_unique_index(nickname_index, f"{table} ({nickname_key})")}\
{_unique_index(card_index, f"{table} ({card})")}\
{_notifications(options, table, nickname, card)}COMMIT;
"""


def _unique_index(name: str, of: str) -> str:
    """Return the statement for an index, which is unique unless a partition key forbids that."""
    return f"""\
DO $idv$ BEGIN
    CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {of};
EXCEPTION WHEN feature_not_supported THEN
    CREATE INDEX IF NOT EXISTS {name} ON {of};
END $idv$;
"""


def _notifications(options: PostgresOptions, table: str, nickname: str, card: str) -> str:
    """Return the statements for a notification of each user that a statement changes.

    Triggers of statements, not of rows: a change of a million rows is one notification. But they
    do not fire for statements on a partition: so a partitioned table has one of rows, too, which
    each partition inherits. The server combines its notifications to one for each transaction.
    """
    schema, dot, base = options.table.rpartition(".")
    function = quoted_table(f"{schema}{dot}{base}_notify")
    channel = (options.notify or NotifyOptions()).channel.replace("'", "''")
    return _notify_function(function, channel, nickname, card) + _notify_triggers(
        function, table, base
    )


def _notify_function(function: str, channel: str, nickname: str, card: str) -> str:
    return f"""\
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
            FROM old_rows LIMIT {_MAX_ROWS * 2 + 1}) AS changed;
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT payloads || array_agg(payload) INTO payloads FROM (
            SELECT unnest(ARRAY[{nickname}::text, 'card:' || {card}::text]) AS payload
            FROM new_rows LIMIT {_MAX_ROWS * 2 + 1}) AS changed;
    END IF;
    IF cardinality(payloads) > {_MAX_ROWS * 2} THEN
        PERFORM pg_notify('{channel}', '*');
    ELSE
        PERFORM pg_notify('{channel}',
            CASE WHEN octet_length(payload) < 8000 THEN payload ELSE '*' END)
        FROM (SELECT DISTINCT unnest(payloads) AS payload) AS changed WHERE payload IS NOT NULL;
    END IF;
    RETURN NULL;
END $idv$;
"""  # noqa: S608 - quoted


def _notify_triggers(function: str, table: str, base: str) -> str:
    lines = ""
    rows = {
        "insert": "REFERENCING NEW TABLE AS new_rows ",
        "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows ",
        "delete": "REFERENCING OLD TABLE AS old_rows ",
        "truncate": "",
    }
    # ALWAYS: also where session_replication_role is replica.
    for event, referencing in rows.items():
        trigger = quoted(f"{base}_notify_{event}")
        lines += f"""\
DROP TRIGGER IF EXISTS {trigger} ON {table};
CREATE TRIGGER {trigger} AFTER {event.upper()} ON {table} {referencing}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger};
"""
    trigger, name = quoted(f"{base}_notify_row"), table.replace("'", "''")
    return f"""{lines}\
DROP TRIGGER IF EXISTS {trigger} ON {table};
DO $idv$ BEGIN
    IF (SELECT relkind = 'p' FROM pg_class WHERE oid = '{name}'::regclass) THEN
        CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {function}();
        ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger};
    END IF;
END $idv$;
"""  # noqa: S608 - quoted
