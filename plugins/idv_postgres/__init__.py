"""Users in a PostgreSQL database, which is read and never written: the kind ``postgres``."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv import hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``postgres``."""
    return {"postgres": "idv_postgres.backend:PostgresBackend"}
