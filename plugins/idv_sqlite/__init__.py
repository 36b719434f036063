"""Users in one table, or view, of a SQLite file, which is read and never written."""

from collections.abc import Mapping
from typing import Any

from idv_sqlite.backend import SqliteBackend
from tornado_idv import Backend, hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[Backend[Any]]]:
    return {"sqlite": SqliteBackend}
