"""The snapshot of the cache, as the admin listener shows it."""

from __future__ import annotations

from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import Report
from tornado_idv.admin.status import part_record


def status(report: Report) -> Record:
    """Return why it cannot be written, ``None`` if there is none."""
    return {"cache_snapshot": part_record(report.process.parts.get("cache snapshot"))}
