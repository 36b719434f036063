"""One server as a process: started, asked until it answers, looked at, and ended."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import people
from benchmarks.wire import traffic

ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
_PAUSE = 0.002
_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 1024
_NOT_UP_YET = (ConnectionError, http.client.HTTPException, TimeoutError)

Command = Callable[[int], Sequence[str]]
"""The command line that serves on a port."""

Probe = Callable[[int], bool]
"""Whether what serves on a port answers a good question; it may raise what `ask` does."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens on ``port``; its first answer took ``start`` seconds."""

    name: str
    port: int
    pid: int
    start: float

    def cpu(self) -> float:
        """Seconds of the processor that it has used up to now."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS

    def resident(self) -> float:
        """Mebibytes of memory that it holds."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        line = next(each for each in status.splitlines() if each.startswith("VmRSS:"))
        return int(line.split()[1]) / _MEBIBYTE


def ask(port: int, body: bytes, key: str | None = traffic.KEY) -> tuple[int, bytes]:
    """Status and body of one answer, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", traffic.PATH, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def identifies(port: int) -> bool:
    """Whether a user is found there."""
    return ask(port, traffic.body(f"@{people.nickname(0)}"))[0] == 200  # noqa: PLR2004


@asynccontextmanager
async def running(
    name: str, command: Command, log: Path, probe: Probe = identifies
) -> AsyncIterator[Server]:
    """Runs a server on a free port; what it writes, its access log above all, goes to a file.

    Raises `RuntimeError` if it ends, or gives no answer to a good question.
    """
    port = _free_port()
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 nothing else is to run meanwhile
            command(port), cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        if not await _answers(port, process, probe):
            raise RuntimeError(f"{name} does not answer:\n{_end(log)}")
        yield Server(name, port, process.pid, time.perf_counter() - began)
    finally:
        process.kill()
        process.wait()


async def _answers(port: int, process: subprocess.Popen[bytes], probe: Probe) -> bool:
    """Asks again and again, so seldom that the asking takes nothing from the start."""
    deadline = time.perf_counter() + _PATIENCE
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            return probe(port)
        except _NOT_UP_YET:
            await asyncio.sleep(_PAUSE)
    return False


def _end(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
