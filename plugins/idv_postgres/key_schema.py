"""The tables of the key store, in the schema ``idv_keys``, and their version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tornado_idv import KeyStoreError

if TYPE_CHECKING:
    from idv_postgres.key_database import KeyDatabase

_LOCK = 0x6964766B
"""The advisory lock of creating the tables; ASCII ``idvk``."""

_TABLES = """
CREATE TABLE store (version integer NOT NULL, revision text NOT NULL);
INSERT INTO store VALUES (1, gen_random_uuid());
CREATE TABLE keys (
    id text COLLATE "C" PRIMARY KEY,
    created double precision NOT NULL,
    owner text NOT NULL,
    scopes text NOT NULL,
    not_before double precision,
    expires double precision,
    requests text,
    misses text,
    note text NOT NULL,
    disabled boolean NOT NULL,
    revoked double precision
);
CREATE TABLE tokens (
    digest bytea PRIMARY KEY,
    id text COLLATE "C" NOT NULL REFERENCES keys,
    created double precision NOT NULL,
    expires double precision
);
CREATE INDEX tokens_id ON tokens (id);
CREATE TABLE last_used (id text COLLATE "C" PRIMARY KEY, time double precision NOT NULL);
"""

# Also where an operator changes rows without our commands. Once in a transaction, since each
# version of the row would otherwise slow down the next one.
_TRIGGERS = """
CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE idv_keys.store SET revision = gen_random_uuid()
        WHERE xmin <> pg_current_xact_id()::xid;
    RETURN NULL;
END $$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON keys
    FOR EACH STATEMENT EXECUTE FUNCTION changed();
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tokens
    FOR EACH STATEMENT EXECUTE FUNCTION changed();
"""

_VERSION = 1


def check(database: KeyDatabase) -> None:
    """Raise `KeyStoreError` unless we know the schema."""
    # With the name of its schema, so that a missing permission is no missing table.
    rows = list(database.execute("SELECT version FROM idv_keys.store"))
    if not rows:
        raise KeyStoreError(f"{database.name}: the key store is damaged; restore it from a backup")
    ((version,),) = rows
    if version != _VERSION:
        raise KeyStoreError(
            f"{database.name}: the key store was written by another tornado-idv (version "
            f"{version} of its schema, this one knows {_VERSION})"
        )


@contextmanager
def creating(database: KeyDatabase) -> Iterator[bool]:
    """Create the tables, and commit them with what is written within.

    Yields whether there were none. Only one process does so at a time.
    """
    with database.writing(f"SELECT pg_advisory_xact_lock({_LOCK})"):
        ((has_schema, has_store),) = database.execute(
            "SELECT to_regnamespace('idv_keys') IS NOT NULL, "
            "to_regclass('idv_keys.store') IS NOT NULL"
        )
        if not has_store:
            if not has_schema:
                database.script("CREATE SCHEMA idv_keys")
            database.script(_TABLES + _TRIGGERS)
        yield not has_store
