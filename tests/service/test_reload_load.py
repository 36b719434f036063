"""Reloads under load: no response is a mix of two configurations, and nothing is left behind.

``RELOADS=200`` makes the run longer.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes.process_usage import anonymous_memory, open_descriptors
from support.processes.reloads import config, reloadable
from support.processes.service import make_database
from tornado_idv.admin.report import INVALID

RELOADS = int(os.environ.get("RELOADS", "40"))
USERS = 30
CONNECTIONS = 8
MAX_GROWTH = 16 * 1024 * 1024

pytestmark = pytest.mark.slow


async def come_to_hold(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, without a thread: the threads are counted."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came to hold")


async def test_each_response_is_of_one_configuration_during_reloads(tmp_path: Path) -> None:
    texts = {}
    for plan in ("A", "B"):
        users = ((f"user{i}", f"{i}", plan, None) for i in range(USERS))
        make_database(tmp_path / f"{plan}.db", *users)
        backend = f"{{name: users, kind: sqlite, path: {plan}.db, timeout: 60s}}"
        limits = f"limits: {{requests: {9 if plan == 'A' else 8}00000/second}}\n"
        site, server = f"https://{plan.lower()}.example", "request_timeout: 60s"
        texts[plan] = config(backend, site=site, server=server, more=limits)
    plans: list[str] = []

    async def repeat(number: int, until: asyncio.Event) -> None:
        async with harness.connected() as client:
            while not until.is_set():
                number = (number + 7) % USERS
                status, record = await client.ask(f"@user{number}")
                assert status == 200, record
                plan = record["plan"]
                assert record["profile_url"] == f"https://{plan.lower()}.example/m/user{number}"
                plans.append(plan)

    async def reload_often(times: int) -> None:
        """Reload with A, a wrong file and B in turn, with some requests in between."""
        for i in range(times):
            if i % 3 == 2:
                assert (await harness.reload("wrong: 1\n")).code == INVALID
            else:
                assert (await harness.reload(texts["BA"[i % 3]])).code is None
            seen = len(plans)
            await come_to_hold(lambda seen=seen: len(plans) > seen + 20)
        await come_to_hold(lambda: not harness.service.directories._replaced)  # noqa: SLF001 - directories that are closed in the background

    async with reloadable(tmp_path, texts["A"]) as harness:
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for i in range(CONNECTIONS):
                clients.create_task(repeat(i, stopped))
            await reload_often(RELOADS // 4)
            descriptors, threads = open_descriptors(os.getpid()), threading.active_count()
            memory = anonymous_memory(os.getpid())
            await reload_often(RELOADS - RELOADS // 4)
            stopped.set()
        await come_to_hold(lambda: open_descriptors(os.getpid()) <= descriptors - CONNECTIONS)
        await come_to_hold(lambda: threading.active_count() <= threads)
        gc.collect()
        assert anonymous_memory(os.getpid()) - memory < MAX_GROWTH
        counters = harness.service.counters
        assert counters.reloads["ok"] + counters.reloads["failed"] == RELOADS
    assert {*plans} == {"A", "B"}
