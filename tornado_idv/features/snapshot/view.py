"""The snapshot of the cache in the records of the admin listener."""

from __future__ import annotations

from tornado_idv.admin.health import part_record
from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import Report


def status(report: Report) -> Record:
    """Return the state of the snapshot, with the problem of its file."""
    return {"cache_snapshot": part_record(report.process.parts.get("cache snapshot"))}
