"""The command ``python -m benchmarks.soak``."""

from __future__ import annotations

import asyncio
import hashlib
import http
import http.client
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.progress import Progress

from benchmarks import dataset
from benchmarks.plan import Plan
from benchmarks.soak.clients import Clients
from benchmarks.soak.readings import Reading, memory_per_hour, read
from benchmarks.wire import process, traffic
from benchmarks.wire.process import Server

_CONFIG = """\
profile_sites: [{site}]
server: {{port: {port}}}
admin: {{port: {admin_port}}}
auth: {{keys: [{{id: measured, sha256: {digest}}}]}}
limits: {{requests: {rate}/second}}
cache: {{max_entries: 20000}}
backends: [{{name: measured, kind: sqlite, path: "{table}"}}]
"""
_RATES = (1_000_000, 2_000_000)
"""Limits for alternating reloads. They are too high to reject a request."""
_CAPACITY_SECONDS = 5
_SHARE = 0.5
_WARM_UP = 0.2
"""First part of the run. The cache fills, so memory may grow."""
_RELOAD_INTERVAL = 5
_PURGE_INTERVAL = 7
_LAG_INTERVAL = 0.01
_PURGES_OF_ALL = 10
"""Each tenth purge is for all users, the others for one user."""
_TIMEOUT = 10.0
_MAX_GROWTH = 1.0
"""Maximum growth of memory, in MiB per hour."""
_INVALID = "\nno_such_setting: 1\n"


@dataclass(slots=True)
class Run:
    """Observations of a run. Lags are in seconds."""

    readings: list[Reading] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    reloads: int = 0
    purges: int = 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.IntRange(min=3), default=600, show_default=True)
@click.option("--users", type=click.IntRange(min=1), default=200_000, show_default=True)
def main(seconds: int, users: int) -> None:
    """Serve one user after the other at half of capacity, with reloads and purges.

    Exits with 1 after a failed request, or a growth of memory, descriptors or threads.
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        plan = Plan(1, (users,), 1, Path(folder), progress, seconds, 0, Path(sys.executable))
        problems = uvloop.run(_soak(plan, users, seconds))
    for problem in problems:
        click.echo(f"failed: {problem}")
    sys.exit(bool(problems))


async def _soak(plan: Plan, users: int, seconds: int) -> list[str]:
    table, admin_port = dataset.table(plan, users), process.free_port()
    config = plan.folder / "config.yaml"

    def configure(port: int, rate: int) -> str:
        digest = hashlib.sha256(traffic.KEY.encode()).hexdigest()
        return _CONFIG.format(
            site=dataset.SITE,
            port=port,
            admin_port=admin_port,
            digest=digest,
            rate=rate,
            table=table,
        )

    def command(port: int) -> Sequence[str]:
        config.write_text(configure(port, _RATES[0]), encoding="utf-8")
        return [sys.executable, "-m", "tornado_idv", "serve", "--config", str(config)]

    clients, run = Clients(users), Run()
    async with (
        process.run_server("tornado-idv", command, plan.folder / "log") as server,
        clients.connected(server.port),
    ):
        capacity = await _capacity(clients)
        click.echo(f"capacity {capacity:,.0f} requests/s, sent {capacity * _SHARE:,.0f}/s")
        clients.pace(capacity * _SHARE)
        texts = [configure(server.port, rate) for rate in _RATES]
        meanwhile = [
            asyncio.create_task(_reload(server, config, [*texts, texts[0] + _INVALID], run)),
            asyncio.create_task(_purge(admin_port, run)),
            asyncio.create_task(_measure_lag(admin_port, run)),
        ]
        with plan.step("soak", seconds) as advance:
            for second in range(seconds):
                await asyncio.sleep(1)
                run.readings.append(read(server.pid, second))
                advance()
        for task in meanwhile:
            task.cancel()
        ended = await asyncio.gather(*meanwhile, return_exceptions=True)
    errors = [str(each) for each in ended if not isinstance(each, asyncio.CancelledError)]
    return errors + _report(run, clients)


async def _capacity(clients: Clients) -> float:
    """Return the responses per second at full speed."""
    clients.pace(inf)
    await asyncio.sleep(_CAPACITY_SECONDS)
    return clients.results.total() / _CAPACITY_SECONDS


async def _reload(server: Server, config: Path, texts: Sequence[str], run: Run) -> None:
    """Reload one configuration after the other. The last one is invalid."""
    for text in itertools.cycle(texts):
        await asyncio.sleep(_RELOAD_INTERVAL)
        await asyncio.to_thread(config.write_text, text, encoding="utf-8")
        os.kill(server.pid, signal.SIGHUP)
        run.reloads += 1


async def _purge(admin_port: int, run: Run) -> None:
    for number in itertools.count():
        await asyncio.sleep(_PURGE_INTERVAL)
        user: dict[str, object] = {"nickname": dataset.nickname(number)}
        request: dict[str, object] = {"all": True} if number % _PURGES_OF_ALL == 0 else user
        await asyncio.to_thread(_request, admin_port, "POST", "/cache/purge", request)
        run.purges += 1


async def _measure_lag(admin_port: int, run: Run) -> None:
    """Record the response time of the event loop for a request without work."""
    reader, writer = await asyncio.open_connection("127.0.0.1", admin_port)
    with closing(writer):
        while True:
            await asyncio.sleep(_LAG_INTERVAL)
            started = time.perf_counter()
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"}")
            run.lags.append(time.perf_counter() - started)


def _request(port: int, method: str, path: str, record: object = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    with closing(connection):
        connection.request(method, path, json.dumps(record), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{method} {path}: {response.status}")


def _report(run: Run, clients: Clients) -> list[str]:
    """Print the figures, and return the failures."""
    first = int(len(run.readings) * _WARM_UP)
    warm = run.readings[first:]
    growth = memory_per_hour(warm)
    click.echo(f"responses {dict(clients.results)}, {run.reloads} reloads, {run.purges} purges")
    click.echo(f"memory {warm[0].memory:.1f} to {warm[-1].memory:.1f} MiB, {growth:+.2f} MiB/h")
    part = len(warm) // 3
    problems = []
    for name in ("descriptors", "threads"):
        early, late = (
            [getattr(each, name) for each in some] for some in (warm[:part], warm[-part:])
        )
        click.echo(f"{name} {statistics.median(early):g}, {statistics.median(late):g} at the end")
        if statistics.median(late) > statistics.median(early):
            problems.append(f"{name} grow")
    lags = sorted(run.lags)
    p50, p999 = (lags[int(len(lags) * share)] * 1000 for share in (0.5, 0.999))
    click.echo(f"event loop: response without work p50 {p50:.1f} ms, p99.9 {p999:.1f} ms")
    if growth > _MAX_GROWTH:
        problems.append(f"memory grows by more than {_MAX_GROWTH:g} MiB/h")
    if not clients.results["200"]:
        problems.append("no response 200")
    failed = {status: count for status, count in clients.results.items() if status != "200"}
    return problems + [f"{count} responses {status}" for status, count in failed.items()]


if __name__ == "__main__":
    main()
