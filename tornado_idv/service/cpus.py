"""The number of CPUs for this process, used for `server.workers: auto`."""

import math
import os
import sys
from pathlib import Path
from typing import Literal

from tornado_idv.errors import SettingError


def worker_count(workers: int | Literal["auto"]) -> int:
    """Return the number of workers for the setting ``server.workers``.

    Raises `SettingError` for several workers on a system other than Linux, because only Linux
    distributes connections over the sockets of several processes.
    """
    if sys.platform == "linux":
        return usable_cpus() if workers == "auto" else workers
    if workers not in (1, "auto"):
        raise SettingError("several workers need Linux; write 1 or auto", "server", "workers")
    return 1


def usable_cpus(
    cgroups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the number of CPUs in the process's affinity, limited by the quotas of its cgroups.

    A quota of 1.5 CPUs counts as 2, because one worker could not use it up. The file ``cgroups``
    names the cgroups of the process, and ``mount`` is the folder of all cgroups. In a container,
    the path in ``cgroups`` may not exist. Then the only quota is in ``mount``.
    """
    limits: list[float] = [len(os.sched_getaffinity(0))]
    path = _read(cgroups).rpartition("0::")[2].partition("\n")[0]  # version 2
    folder = mount / path.lstrip("/")
    for each in (folder, *folder.parents):
        values = _read(each / "cpu.max").split()
        if len(values) > 1 and all(map(str.isdigit, values)):  # otherwise there is no quota
            limits.append(int(values[0]) / int(values[1]))
    return math.ceil(min(limits))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
