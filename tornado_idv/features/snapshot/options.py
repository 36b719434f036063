"""The settings of the snapshot of the cache."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tornado_idv.options import ConfigPath, Duration, Options


class SnapshotOptions(Options):
    """Settings of this feature in the section ``cache``."""

    snapshot: ConfigPath | None = None
    """The file that found users are written to, to be served stale after a restart."""
    snapshot_interval: Annotated[Duration, Field(ge=1)] = 300.0
    """How often that file is written, beside once at a stop."""
