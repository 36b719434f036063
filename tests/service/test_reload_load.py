"""Reloads under load: no response is a mix of two configurations, and nothing is left behind.

``RELOADS=200`` makes the run longer.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes.process_usage import open_descriptors
from support.processes.reloads import KeepAlive, ReloadHarness, config, reloadable
from support.processes.service import make_database
from tornado_idv.reload_result import INVALID

RELOADS = int(os.environ.get("RELOADS", "40"))
USERS = 30
CONNECTIONS = 8
PAGE = os.sysconf("SC_PAGE_SIZE")
MAX_GROWTH = 16 * 1024 * 1024

pytestmark = pytest.mark.slow


def descriptors() -> int:
    return open_descriptors(os.getpid())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Load:
    """Clients that repeat requests, and the plans of the responses."""

    def __init__(self, harness: ReloadHarness) -> None:
        self.plans: list[str] = []
        self.stopped = False
        self._harness = harness

    async def run(self, first: int) -> None:
        """Use one connection until the end."""
        async with self._harness.connected() as client:
            number = first
            while not self.stopped:
                number = (number + 7) % USERS
                await self._ask(client, number)

    async def _ask(self, client: KeepAlive, number: int) -> None:
        status, record = await client.ask(f"@user{number}")
        assert status == 200, record
        plan = record["plan"]
        assert record["profile_url"] == f"https://{plan.lower()}.example/m/user{number}"
        self.plans.append(plan)


async def test_each_response_is_of_one_configuration_during_reloads(tmp_path: Path) -> None:
    texts = {}
    for plan in ("A", "B"):
        users = ((f"user{i}", f"{i}", plan, None) for i in range(USERS))
        make_database(tmp_path / f"{plan}.db", *users)
        backend = f"{{name: users, kind: sqlite, path: {plan}.db, timeout: 60s}}"
        limits = f"limits: {{requests: {9 if plan == 'A' else 8}00000/second}}\n"
        site, server = f"https://{plan.lower()}.example", "request_timeout: 60s"
        texts[plan] = config(backend, site=site, server=server, more=limits)
    async with reloadable(tmp_path, texts["A"]) as harness:
        load = Load(harness)
        async with asyncio.TaskGroup() as clients:
            for i in range(CONNECTIONS):
                clients.create_task(load.run(i))
            await reload_often(harness, texts, RELOADS // 4, load)
            await rest(harness)
            before = descriptors(), threading.active_count()
            memory = resident()
            await reload_often(harness, texts, RELOADS - RELOADS // 4, load)
            load.stopped = True
        await rest(harness)
        await come_to_hold(lambda: descriptors() <= before[0] - CONNECTIONS)
        await come_to_hold(lambda: threading.active_count() <= before[1])
        gc.collect()
        assert resident() - memory < MAX_GROWTH
        counters = harness.service.shared.counters
        assert counters.reloads["ok"] + counters.reloads["failed"] == RELOADS
    assert {*load.plans} == {"A", "B"}


async def reload_often(
    harness: ReloadHarness, texts: dict[str, str], times: int, load: Load
) -> None:
    """Reload with A, a wrong file and B in turn, with some requests in between."""
    for i in range(times):
        if i % 3 == 2:
            assert (await harness.reload("wrong: 1\n")).code == INVALID
        else:
            assert (await harness.reload(texts["BA"[i % 3]])).code is None
        seen = len(load.plans)
        await come_to_hold(lambda seen=seen: len(load.plans) > seen + 20)


async def come_to_hold(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, without a thread: the threads are counted."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came to hold")


async def rest(harness: ReloadHarness) -> None:
    """Wait until what earlier configurations have opened is closed."""
    leaving = harness.service.directories._replaced
    if leaving:
        await asyncio.wait(leaving.values(), timeout=10)
