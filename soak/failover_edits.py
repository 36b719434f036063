"""Edits of users during failures and failovers of the server with the users."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from soak.fault_catalogue import Inject, Scenario
from soak.people import Person
from soak.reference import Source
from soak.replica_changes import Edit

LIMITS = "timeout: 800ms, breaker: {failures: 5, open_for: 300ms, open_max: 1s}"
"""Limits of a backend. Even a busy machine does not reach the timeout, so a 503 needs a fault."""
_SETTLED = 5.0
"""Maximum time until services follow a failover, in seconds."""


class LockedSource(Source):
    """A source of users that several threads may edit.

    Each edit holds ``lock``. A fault holds ``lock``, too, while no server accepts writes.
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
    """Add, change and remove users while the context is open."""
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
    """Make an edit. Wait until the processes at ``ports`` notice it, for up to `_SETTLED` s."""
    await edit.make()
    deadline = time.monotonic() + _SETTLED
    while not all([await edit.is_seen(port) for port in ports]):
        if time.monotonic() > deadline:
            break  # the next edit will report the delay
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
    """Return a scenario that also edits users, and waits for the processes at ``ports`` to notice.

    Without ``ports``, no users are edited. The scenario lasts for ``hold`` seconds or longer.
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
