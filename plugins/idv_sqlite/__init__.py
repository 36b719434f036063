"""Users in one table, or view, of a SQLite file, which is read and never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tornado_idv import hookimpl

if TYPE_CHECKING:
    from idv_sqlite.backend import SqliteBackend


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[SqliteBackend]]:
    """Provide the kind ``sqlite``."""
    from idv_sqlite.backend import SqliteBackend  # noqa: PLC0415 - not for `--help`

    return {"sqlite": SqliteBackend}
