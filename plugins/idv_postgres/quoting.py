"""Names in SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """Quote ``name`` or ``schema.name``."""
    return ".".join(map(quoted, table.split(".")))
