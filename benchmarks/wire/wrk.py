"""wrk, the load generator, on a separate core."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.wire.process import Server
from benchmarks.wire.traffic import Mix, Traffic

CONNECTIONS = 32
_PACED_CONNECTIONS = 128
_SCRIPT = Path(__file__).with_name("requests.lua")
_FIRST_ERROR = 400
_TIMEOUT = 60.0
"""Timeout for the end of wrk after a round, in seconds."""


@dataclass(frozen=True, slots=True)
class Work:
    """Completed requests. Times are in seconds, ``cpu`` is per request."""

    requests: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Return the responses per second."""
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Load(Work):
    """The result of one run of wrk, with the ``cpu`` of the server."""

    p50: float
    p99: float


def missing() -> str | None:
    """Return the reason why wrk cannot run, or ``None``."""
    if shutil.which("wrk") is None:
        return "wrk is not installed; on Debian: apt-get install wrk"
    return None


def describe() -> dict[str, str]:
    """Return the version of wrk, or nothing if it is missing."""
    if missing() is not None:
        return {}
    output = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"wrk (\S+)", output)
    return {"wrk": match[1] if match else "unknown"}


async def load(plan: Plan, server: Server, mix: Mix, connections: int | None = None) -> Load:
    """Send requests at full speed, by default on 32 connections."""
    traffic = mix(plan.keys, plan.seconds)
    return await _run(plan, server, traffic, connections or CONNECTIONS)


async def paced(plan: Plan, server: Server, mix: Mix, rate: float) -> Load:
    """Send about ``rate`` requests per second, from 128 connections.

    wrk itself has no rate limit, so a connection pauses randomly after each response. A latency
    above twice the mean interval counts several times: once for each request that the connection
    would have sent meanwhile.
    """
    pause = _PACED_CONNECTIONS / rate * 1000
    traffic = mix(plan.keys, plan.seconds)
    return await _run(plan, server, traffic, _PACED_CONNECTIONS, str(pause))


async def _run(plan: Plan, server: Server, traffic: Traffic, connections: int, *more: str) -> Load:
    file = plan.folder / "requests"
    traffic.write(file)
    command = [
        *("taskset", "-c", str(plan.load_core)),
        *("wrk", "-t1", f"-c{connections}", f"-d{math.ceil(plan.seconds)}s", "--timeout", "5s"),
        *("-s", str(_SCRIPT), f"http://127.0.0.1:{server.port}/"),
        *("--", str(file), str(len(traffic.head)), *more),
    ]
    before = server.cpu()
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(plan.seconds + _TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        raise RuntimeError(f"wrk: timeout, core {plan.load_core} is busy") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    used = server.cpu() - before
    file.unlink()
    return _read(server, traffic, output.decode(), used)


def _read(server: Server, traffic: Traffic, output: str, cpu: float) -> Load:
    """Raise `RuntimeError` unless every response was the expected one."""
    try:
        result = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"wrk failed on {server.name}:\n{output}") from None
    requests = result["requests"]
    errors = requests if traffic.status >= _FIRST_ERROR else 0
    if not traffic.repeats and requests > len(traffic.bodies):
        raise RuntimeError(f"{server.name} got a request twice: the list of requests is too short")
    if not requests or result["failed"] or result["errors"] != errors:
        raise RuntimeError(
            f"{server.name} did not respond with {traffic.status} throughout:\n{output}"
        )
    return Load(
        requests,
        result["microseconds"] / 1e6,
        cpu / requests,
        result["p50"] / 1e6,
        result["p99"] / 1e6,
    )
