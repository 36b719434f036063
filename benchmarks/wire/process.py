"""One server as a process: started, probed until it responds, measured, and killed."""

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

from benchmarks import dataset
from benchmarks.wire import traffic

ROOT = Path(__file__).parents[2]
_TIMEOUT = 60.0
_PROBE_INTERVAL = 0.002
_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 1024
_NOT_READY = (ConnectionError, http.client.HTTPException, TimeoutError)

Command = Callable[[int], Sequence[str]]
"""Returns the command line to serve on a port."""

Probe = Callable[[int], bool]
"""Returns whether the server on a port is ready. May raise the exceptions of `post`."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process with a listener on ``port``. Its first response took ``start`` seconds."""

    name: str
    port: int
    pid: int
    start: float

    def cpu(self) -> float:
        """Return the CPU seconds of the process and its workers so far."""
        ticks = 0
        for pid in (self.pid, *self._children()):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        return ticks / _TICKS

    def resident(self) -> float:
        """Return the resident memory in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        line = next(each for each in status.splitlines() if each.startswith("VmRSS:"))
        return int(line.split()[1]) / _MEBIBYTE

    def unshared(self) -> list[float]:
        """Return the unshared memory of each worker and of the manager, in MiB."""
        sizes = []
        for pid in self._children():
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            private = [each.split()[1] for each in lines if each.startswith("Private_")]
            sizes.append(sum(map(int, private)) / _MEBIBYTE)
        return sizes

    def _children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(each) for each in children.read_text(encoding="ascii").split()]


def post(port: int, body: bytes, key: str | None = traffic.KEY) -> tuple[int, bytes]:
    """Send one request on a new connection. Return status and body of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
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
    """Return whether the server on ``port`` finds a user."""
    return post(port, traffic.body(f"@{dataset.nickname(0)}"))[0] == 200  # noqa: PLR2004


@asynccontextmanager
async def run_server(
    name: str, command: Command, log: Path, probe: Probe = identifies
) -> AsyncIterator[Server]:
    """Run a server on a free port, with its output in the file ``log``.

    Raises `RuntimeError` if it exits, or does not become ready.
    """
    port = free_port()
    started_at = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 nothing else runs meanwhile
            command(port), cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        if not await _is_ready(port, process, probe):
            raise RuntimeError(f"{name} does not become ready:\n{_tail(log)}")
        yield Server(name, port, process.pid, time.perf_counter() - started_at)
    finally:
        process.kill()
        process.wait()


async def _is_ready(port: int, process: subprocess.Popen[bytes], probe: Probe) -> bool:
    """Probe the server until it is ready. The interval must not slow its start."""
    deadline = time.perf_counter() + _TIMEOUT
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            return probe(port)
        except _NOT_READY:
            await asyncio.sleep(_PROBE_INTERVAL)
    return False


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
