"""Processes with a snapshot, one after the other, over clocks that a test moves."""

from pathlib import Path
from typing import Any

from pluggy import PluginManager

from support.fakes.clock_and_backends import FakeBackend, Ticker
from support.fakes.directories import ALICE, directory
from tornado_idv.config.settings import Settings
from tornado_idv.features.snapshot.options import SnapshotOptions
from tornado_idv.features.snapshot.snapshot_file import SnapshotFiles
from tornado_idv.features.snapshot.snapshots import Snapshots
from tornado_idv.interfaces.backend import BackendOptions, BreakerOptions
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.part import Running

TTL, STALE = 300, 3600
_BREAKER = BreakerOptions(failures=10**6)


class _Limits(SnapshotOptions, CacheLimits):
    """The section ``cache`` with the settings of this feature."""


class Source(FakeBackend):
    """A backend whose content has a revision, unless ``tracks`` is false."""

    def __init__(self, name: str = "crm", *, tracks: bool = True) -> None:
        super().__init__(ALICE, name, breaker=_BREAKER)
        self.tracks = tracks
        self.content = "1"

    @property
    def revision(self) -> str | None:
        return self.content if self.tracks else None


def settings_of(path: Path, **cache: Any) -> Settings:
    limits = _Limits(**{"ttl": TTL, "negative_ttl": 30, "snapshot": path, **cache})
    backends = (BackendOptions(name="crm", kind="fake"),)
    return Settings(profile_sites=("https://profiles.example",), cache=limits, backends=backends)


class Process:
    """A process with a directory and a snapshot; ``wall`` is the clock of the machine."""

    def __init__(self, path: Path, wall: Ticker, *backends: FakeBackend, **cache: Any) -> None:
        self.settings = settings_of(path, **cache)
        self.ticker = Ticker()
        self.directory: Directory = directory(*backends, ticker=self.ticker)
        running = Running(self.settings, PluginManager("test"), Counters())
        self.snapshots = Snapshots(running, wall)
        self.snapshots.follow(self.settings, self.directory)

    @property
    def file(self) -> SnapshotFiles:
        assert self.snapshots._files is not None  # noqa: SLF001 - the write of a minute later
        return self.snapshots._files  # noqa: SLF001 - the write of a minute later

    async def start(self) -> None:
        async with self.snapshots.opened():
            self.snapshots.follow(self.settings, self.directory)

    async def stop(self) -> None:
        async with self.snapshots.running():
            pass
        self.file.release()

    async def write(self) -> bool:
        return await self.snapshots._write()  # noqa: SLF001 - the write of a minute later
