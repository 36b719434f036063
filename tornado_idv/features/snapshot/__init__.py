"""Feature: a snapshot of the answer cache in a file, for the next start."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "snapshot",
    options={"cache": "tornado_idv.features.snapshot.options:SnapshotOptions"},
    part="tornado_idv.features.snapshot.snapshots:Snapshots",
    status="tornado_idv.features.snapshot.snapshots:status",
)
