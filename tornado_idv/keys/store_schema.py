"""The schema of the key store's file."""

from __future__ import annotations

APPLICATION_ID = 0x6964766B
"""Marks a database as a key store; ASCII ``idvk``."""
VERSION = 1
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
CREATE TABLE changes (number INTEGER PRIMARY KEY, revision TEXT, id TEXT);
"""

_CHANGED_IDS = {
    ("keys", "INSERT"): "SELECT NEW.id AS key_id",
    ("keys", "UPDATE"): "SELECT OLD.id AS key_id UNION SELECT NEW.id",
    ("keys", "DELETE"): "SELECT OLD.id AS key_id",
    # With REPLACE, a token that is already there is deleted without a trigger for that.
    ("tokens", "INSERT"): "SELECT NEW.id AS key_id UNION "
    "SELECT id FROM tokens WHERE digest = NEW.digest",
    ("tokens", "UPDATE"): "SELECT OLD.id AS key_id UNION SELECT NEW.id UNION "
    "SELECT id FROM tokens WHERE digest = NEW.digest",
    ("tokens", "DELETE"): "SELECT OLD.id AS key_id",
}
# Also where an operator changes rows without our commands: the log has the keys of each change, and
# the revision of the store before it.
_TRIGGERS = "".join(
    f"""
CREATE TRIGGER {table}_{event} AFTER {event} ON {table}
BEGIN UPDATE store SET revision = hex(randomblob(16)); END;
CREATE TRIGGER log_{table}_{event} BEFORE {event} ON {table} BEGIN
    INSERT INTO changes (revision, id) SELECT revision, key_id FROM store, ({ids});
    DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {_CHANGES_KEPT};
END;
"""  # noqa: S608 - constants
    for (table, event), ids in _CHANGED_IDS.items()
)

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
{_TABLES}{_TRIGGERS}"""
