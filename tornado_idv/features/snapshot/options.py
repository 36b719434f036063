"""The settings of the snapshot of the cache."""

from typing import Annotated

from pydantic import Field

from tornado_idv.options import ConfigPath, Duration, Options


class SnapshotOptions(Options):
    """Settings of the feature `snapshot` in the section ``cache``."""

    snapshot: ConfigPath | None = None
    """The file for cached users. After a restart, they are served only while lookups fail."""
    snapshot_interval: Annotated[Duration, Field(ge=1)] = 300.0
    """Interval between writes of the snapshot. A stop also writes the snapshot."""
