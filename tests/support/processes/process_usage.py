"""CPU time, memory and descriptors of processes that a test started."""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.processes.process import eventually

_INTERVAL = 0.25
_IDLE_SHARE = 0.1
_TIMEOUT = 90.0
"""Seconds in which processes end what they do, also where they get a tenth of a processor."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_time(pids: Sequence[int]) -> float:
    """Return the seconds of CPU time that processes have taken, those that run still."""
    stats = (_stat(Path(f"/proc/{pid}/stat")) for pid in pids)
    return _TICK * sum(int(each[11]) + int(each[12]) for each in stats if each)


def wait_until_idle(pids: Sequence[int]) -> None:
    """Wait until processes want less than a tenth of a processor, which others may occupy."""

    def are_idle() -> bool:
        before, started = cpu_time(pids), time.monotonic()
        time.sleep(_INTERVAL)
        taken = (cpu_time(pids) - before) / (time.monotonic() - started)
        return 0 <= taken < _IDLE_SHARE and not any(map(_is_runnable, pids))

    eventually(are_idle, _TIMEOUT)


def _is_runnable(pid: int) -> bool:
    """Return whether a thread runs, or waits for a processor."""
    stats = map(_stat, Path(f"/proc/{pid}/task").glob("*/stat"))
    return any(each[0] == "R" for each in stats if each)


def _stat(path: Path) -> list[str]:
    """Return the fields of a process or thread from its state on; of one that has ended, none."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def anonymous_memory(pid: int) -> int:
    """Return the bytes of memory of a process that no file backs."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(text.partition("RssAnon:")[2].split()[0])


def open_descriptors(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Limit the descriptors of this process, and of those that it starts within."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
