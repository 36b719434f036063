"""Read-only access to users in a table or view of a SQLite file: the kind ``sqlite``."""

from __future__ import annotations

from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``sqlite``."""
    return Kinds(backends={"sqlite": "idv_sqlite.backend:SqliteBackend"})
