"""Users in one table, or view, of a SQLite file, which the service only reads."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv import hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``sqlite``."""
    return {"sqlite": "idv_sqlite.backend:SqliteBackend"}
