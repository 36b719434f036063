"""Edits of users while the server that they are written to fails, or becomes another one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from soak.fault_catalogue import Inject, Scenario
from soak.reference import Source
from soak.replica_changes import Edit
from support.faults.client import Person

LIMITS = "timeout: 800ms, breaker: {failures: 5, open_for: 300ms, open_max: 1s}"
"""A timeout that a busy machine does not reach, since a 503 is wrong while there is no fault."""
_SETTLED = 5.0
"""Seconds in which services follow a failover by themselves."""


class LockedSource(Source):
    """A source that several threads edit.

    ``lock`` is held by each edit, and by a fault while there is no server to write to.
    """

    def __init__(self, *arguments: Any) -> None:
        self.lock = threading.Lock()
        super().__init__(*arguments)

    def edit(self, random: Random) -> None:
        with self.lock:
            super().edit(random)

    def turn_over(self, random: Random) -> None:
        with self.lock:
            super().turn_over(random)

    def mark(self, *, recreate: bool) -> Person:
        with self.lock:
            return super().mark(recreate=recreate)


@asynccontextmanager
async def editing(source: LockedSource) -> AsyncIterator[None]:
    """Add, change and remove users meanwhile."""
    random = Random(0)

    async def edit() -> None:
        while True:
            await asyncio.sleep(random.uniform(0.2, 0.6))
            await asyncio.to_thread(source.edit, random)

    task = asyncio.create_task(edit())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def settle(edit: Edit, ports: Collection[int]) -> None:
    """Wait until these processes follow an edit, for as long as they may take after a failover."""
    await edit.make()
    deadline = time.monotonic() + _SETTLED
    while not all([await edit.is_seen(port) for port in ports]):
        if time.monotonic() > deadline:
            break  # which the edit that comes next shows
        await asyncio.sleep(0.1)


def edited(
    name: str,
    fault: Inject,
    edit: Edit,
    source: LockedSource,
    ports: Collection[int],
    *,
    affects: Collection[int] | None = None,
    followers: Collection[int] = (),
    lag: float = 0.0,
    hold: float = 0.0,
) -> Scenario:
    """Return a scenario in which users come and go, and the processes at ``ports`` see it.

    Without ``ports`` none do. It lasts for ``hold`` seconds at least.
    """
    random = Random(0)

    @asynccontextmanager
    async def inject() -> AsyncIterator[None]:
        async with fault():
            begun = time.monotonic()
            if ports:
                await asyncio.to_thread(source.turn_over, random)
                await settle(edit, ports)
            await asyncio.sleep(begun + hold - time.monotonic())
            yield

    return Scenario(
        name,
        source,
        inject,
        blind=False,
        harms_file=False,
        affects=affects,
        followed=("edit",) if followers else (),
        followers=followers,
        lag=lag,
    )
