"""wrk, which asks from a core of its own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.wire.server import Server
from benchmarks.wire.traffic import Mix, Traffic

CONNECTIONS = 32
_PACED_CONNECTIONS = 128
_SCRIPT = Path(__file__).with_name("requests.lua")
_FIRST_ERROR = 400
_PATIENCE = 60.0
"""Seconds for wrk to end beside those that it is to ask."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was asked and answered; times in seconds, ``cpu`` for one request."""

    requests: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Load(Work):
    """What one run of wrk found; the ``cpu`` is the server's."""

    p50: float
    p99: float


def missing() -> str | None:
    """Why nothing can be asked; ``None`` where it can."""
    if shutil.which("wrk") is None:
        return "wrk is not installed; on Debian: apt-get install wrk"
    return None


def described() -> dict[str, str]:
    """The version that wrk tells, where it is."""
    if missing() is not None:
        return {}
    told = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"wrk (\S+)", told)
    return {"wrk": match[1] if match else "unknown"}


async def load(plan: Plan, server: Server, mix: Mix) -> Load:
    """Asks as fast as the server answers, on 32 connections."""
    return await _run(plan, server, mix(plan.keys, plan.seconds), CONNECTIONS)


async def paced(plan: Plan, server: Server, mix: Mix, rate: float) -> Load:
    """Asks about ``rate`` times a second: each of 128 callers pauses at random after an answer.

    wrk itself knows no rate. It counts a latency over twice the mean interval as often as
    that caller would have asked meanwhile.
    """
    pause = _PACED_CONNECTIONS / rate * 1000
    traffic = mix(plan.keys, plan.seconds)
    return await _run(plan, server, traffic, _PACED_CONNECTIONS, str(pause))


async def _run(plan: Plan, server: Server, traffic: Traffic, connections: int, *more: str) -> Load:
    file = plan.folder / "requests"
    traffic.write(file)
    command = [
        *("taskset", "-c", str(plan.load_core)),
        *("wrk", "-t1", f"-c{connections}", f"-d{plan.seconds}s", "--timeout", "5s"),
        *("-s", str(_SCRIPT), f"http://127.0.0.1:{server.port}/"),
        *("--", str(file), str(len(traffic.head)), *more),
    ]
    before = server.cpu()
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(plan.seconds + _PATIENCE):
            output, _ = await process.communicate()
    except TimeoutError:
        raise RuntimeError(f"wrk had no time on core {plan.load_core}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    used = server.cpu() - before
    file.unlink()
    return _read(server, traffic, output.decode(), used)


def _read(server: Server, traffic: Traffic, output: str, cpu: float) -> Load:
    """Raises `RuntimeError` unless every answer was the one that was to be had."""
    try:
        told = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"wrk failed on {server.name}:\n{output}") from None
    requests = told["requests"]
    refused = requests if traffic.status >= _FIRST_ERROR else 0
    if not traffic.repeats and requests > len(traffic.bodies):
        raise RuntimeError(f"{server.name} was asked the same twice: the list is too short")
    if not requests or told["failed"] or told["refused"] != refused:
        raise RuntimeError(f"{server.name} did not answer {traffic.status} throughout:\n{output}")
    return Load(
        requests,
        told["microseconds"] / 1e6,
        cpu / requests,
        told["p50"] / 1e6,
        told["p99"] / 1e6,
    )
