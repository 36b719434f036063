"""Readings of the resources of a process, and their growth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

_WINDOW = 30
_SECONDS_PER_HOUR = 3600.0
_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident memory in MiB, descriptors and threads of a process. ``at`` is in seconds."""

    at: float
    memory: float
    descriptors: int
    threads: int


def read(pid: int, at: float) -> Reading:
    """Read a process of this user."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    memory = int(fields["VmRSS"].split()[0]) / _KIB_PER_MIB
    return Reading(at, memory, len(list((process / "fd").iterdir())), int(fields["Threads"]))


def memory_per_hour(readings: Sequence[Reading]) -> float:
    """Return the growth of memory in MiB per hour.

    This is the median of the slopes between all pairs of maxima (Theil and Sen). There is one
    maximum for each half minute, so a purge has no influence: it frees memory only for seconds.
    """
    peaks = [
        max(readings[i : i + _WINDOW], key=lambda each: each.memory)
        for i in range(0, len(readings), _WINDOW)
    ]
    slopes = [(b.memory - a.memory) / (b.at - a.at) for a, b in combinations(peaks, 2)]
    return statistics.median(slopes) * _SECONDS_PER_HOUR if slopes else 0.0
