"""Read-only access to users in a SQLite file: the kind ``sqlite``. Key stores in files."""

from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``sqlite``, and key stores at paths."""
    return Kinds(
        backends={"sqlite": "idv_sqlite.backend:SqliteBackend"},
        key_stores={"": "idv_sqlite.key_store:SqliteKeyStore"},
    )
