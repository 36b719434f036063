"""The schema of the key store's file, and how an older one becomes the current one."""

from __future__ import annotations

APPLICATION_ID = 0x6964766B
"""Marks a database as a key store; ASCII ``idvk``."""
_CHANGES_KEPT = 10_000
"""Changed rows of keys and tokens that are logged; after more, a service reads all keys again."""

_TABLES = """
CREATE TABLE store (revision TEXT NOT NULL);
INSERT INTO store VALUES (hex(randomblob(16)));
CREATE TABLE keys (
    id TEXT PRIMARY KEY NOT NULL,
    created REAL NOT NULL,
    owner TEXT NOT NULL,
    scopes TEXT NOT NULL,
    not_before REAL,
    expires REAL,
    requests TEXT,
    misses TEXT,
    note TEXT NOT NULL,
    disabled INTEGER NOT NULL,
    revoked REAL
) WITHOUT ROWID;
CREATE TABLE tokens (
    digest BLOB PRIMARY KEY NOT NULL,
    id TEXT NOT NULL REFERENCES keys,
    created REAL NOT NULL,
    expires REAL
) WITHOUT ROWID;
CREATE TABLE last_used (id TEXT PRIMARY KEY NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
"""

_TRIGGERS = "".join(
    # Also where an operator changes rows without our commands.
    f"CREATE TRIGGER {table}_{event} AFTER {event} ON {table} "  # noqa: S608 - constants
    "BEGIN UPDATE store SET revision = hex(randomblob(16)); END;\n"
    for table in ("keys", "tokens")
    for event in ("INSERT", "UPDATE", "DELETE")
)

_LOG = """
CREATE TABLE changes (number INTEGER PRIMARY KEY, revision TEXT, id TEXT);
"""
"""The log: the key that a change was of, and the revision of the store before it."""

_LOG_TRIGGERS = "".join(
    f"""
DROP TRIGGER {table}_{event};
CREATE TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN
    INSERT INTO changes (revision, id) SELECT revision, key_id FROM store, ({ids});
    DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {_CHANGES_KEPT};
    UPDATE store SET revision = hex(randomblob(16));
END;
"""  # noqa: S608 - constants
    for table in ("keys", "tokens")
    for event, ids in {
        "INSERT": "SELECT NEW.id AS key_id",
        "UPDATE": "SELECT OLD.id AS key_id UNION SELECT NEW.id",
        "DELETE": "SELECT OLD.id AS key_id",
    }.items()
)

MIGRATIONS = [_TABLES + _TRIGGERS, _LOG + _LOG_TRIGGERS]
"""The SQL that leads from each version of the schema (``PRAGMA user_version``) to the next."""
