"""Description of the machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("uvloop", "cachetools", "aiosqlite", "pluggy", "tornado-idv")


def pin() -> tuple[int, int]:
    """Pin this process and its children to one core. Return it and a core for the load.

    On a machine with one core both are the same.
    """
    *others, core = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core, others[-1] if others else core


def describe(core: int, load_core: int) -> dict[str, str]:
    """Return the properties of the machine. Runs are comparable only if these are equal."""
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": f"{_model()}, {os.cpu_count()} cores",
        "pinned to": f"core {core}, HTTP load generator to core {load_core}",
        "load": load,
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: version(package) for package in _PACKAGES},
        "SQLite": sqlite3.sqlite_version,
    }


def _model() -> str:
    """Return the CPU's model name. Some architectures have none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
