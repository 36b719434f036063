"""Number of CPUs that this process may use: the meaning of `server.workers: auto`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tornado_idv.errors import SettingError

_CGROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def worker_count(workers: int | Literal["auto"]) -> int:
    """Return how many workers a setting asks for; raises `SettingError` where one is the most.

    Only Linux spreads connections over the sockets of several processes.
    """
    if sys.platform == "linux":
        return usable_cpus() if workers == "auto" else workers
    if workers not in (1, "auto"):
        raise SettingError("several workers need Linux; write 1 or auto", "server", "workers")
    return 1


def usable_cpus(cgroups: Path = _CGROUPS, mount: Path = _MOUNT) -> int:
    """Return the CPUs of the process's affinity, limited by the quota of its cgroups.

    A quota is rounded up: two workers use all of one and a half CPUs. ``cgroups`` names the
    cgroups of the process, whose files are below ``mount``.
    """
    affinity = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min([affinity, *_quotas(cgroups, mount)])))


def _quotas(cgroups: Path, mount: Path) -> Iterator[float]:
    """Yield every limit that applies, in CPUs."""
    for line in _read(cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _folders(mount, path):
                yield from _quota(*_read(folder / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            for folder in _folders(mount / "cpu", path):  # version 1
                period = _read(folder / "cpu.cfs_period_us")
                yield from _quota(*_read(folder / "cpu.cfs_quota_us").split(), *period.split())


def _folders(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and of those above it, which limit it too.

    In a container, the path may be that on the host, and only the uppermost folder is there.
    """
    folder = mount / path.lstrip("/")
    yield folder
    yield from (each for each in folder.parents if each.is_relative_to(mount))


def _quota(quota: str = "max", period: str = "") -> Iterator[float]:
    """Yield the CPUs of a quota and its period, in microseconds; nothing if there is no limit."""
    if quota.isdigit() and period.isdigit():
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
