"""The machine and the versions that figures are of."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("uvloop", "cachetools", "aiosqlite", "pluggy", "tornado-idv")


def pin() -> tuple[int, int]:
    """Keeps this process, and those it starts, on one core; gives it and one to ask from.

    They are the same core where there is no other.
    """
    *others, core = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core, others[-1] if others else core


def described(core: int, load_core: int) -> dict[str, str]:
    """What is to be known of a figure before it is held against another."""
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": f"{_model()}, {os.cpu_count()} cores",
        "pinned to": f"core {core}, what asks over HTTP to core {load_core}",
        "load": load,
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: version(package) for package in _PACKAGES},
        "SQLite": sqlite3.sqlite_version,
    }


def _model() -> str:
    """The processor's name; not every architecture tells one."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
