"""The pool of connections for lookups in PostgreSQL, with connections that are faked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from idv_postgres.pool import Pool


class Connection:
    def __init__(self) -> None:
        self.ended: str | None = None

    def is_closed(self) -> bool:
        return self.ended is not None

    def terminate(self) -> None:
        self.ended = self.ended or "terminated"

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's signature
        assert timeout > 0
        self.ended = self.ended or "closed"


class Server:
    """Connects at once, not before ``accepting`` is set, or with an error."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.accepting = asyncio.Event()
        self.accepting.set()
        self.error: Exception | None = None

    async def connect(self) -> Any:
        await self.accepting.wait()
        if self.error is not None:
            raise self.error
        self.connections.append(Connection())
        return self.connections[-1]


async def started(pool: Pool) -> asyncio.Task[Any]:
    acquiring = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return acquiring


async def test_connection_that_was_returned_last_is_used_next() -> None:
    """So that others stay unused. Each is opened only when all are in use, up to the size."""
    server = Server()
    pool = Pool(server.connect, 2)
    first, second = await pool.acquire(), await pool.acquire()
    assert first is not second
    pool.release(first)
    pool.release(second)
    assert await pool.acquire() is second
    assert await pool.acquire() is first
    waiting = await started(pool)
    assert not waiting.done()
    pool.release(first)
    assert await waiting is first
    assert len(server.connections) == 2


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_connect_that_does_not_end_well_uses_up_no_slot(end: str) -> None:
    server = Server()
    pool = Pool(server.connect, 1)
    server.accepting.clear()
    acquiring = await started(pool)
    if end == "cancelled":
        acquiring.cancel()
    else:
        server.error = ConnectionRefusedError()
        server.accepting.set()
    with pytest.raises((asyncio.CancelledError, ConnectionRefusedError)):
        await acquiring
    server.error = None
    server.accepting.set()
    assert await asyncio.wait_for(pool.acquire(), 5) is server.connections[0]


async def test_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    """Neither one that was closed while it was in use, nor one that was closed since."""
    pool = Pool(Server().connect, 2)
    first, second = await pool.acquire(), await pool.acquire()
    first.terminate()
    pool.release(first)
    pool.release(second)
    second.terminate()
    assert not pool.connections
    third, fourth = await pool.acquire(), await pool.acquire()
    assert len(pool.connections) == 2
    assert pool._open == {third, fourth}  # a service that runs for long loses many


async def test_connections_in_use_stay_when_idle_ones_are_dropped() -> None:
    """Where all are replaced, until they are returned."""
    pool = Pool(Server().connect, 2)
    used, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.drop_idle()
    assert (idle.ended, used.ended) == ("terminated", None)
    pool.release(used)
    assert await pool.acquire() is used
    assert await pool.acquire() is not idle
    pool.replace()
    assert used.ended is None
    pool.release(used)
    assert used.ended == "terminated"


async def test_close_ends_idle_connections_and_then_terminates_all() -> None:
    """A clean end is in the server's log as such. One that fails leaves no other one open."""
    server = Server()
    pool = Pool(server.connect, 3)
    used, broken, idle = [await pool.acquire() for _ in range(3)]
    pool.release(broken)
    pool.release(idle)

    async def fail(**_: object) -> None:
        raise TimeoutError

    broken.close = fail
    await pool.close()
    assert (used.ended, broken.ended, idle.ended) == ("terminated", "terminated", "closed")
    assert not pool.connections
    with pytest.raises(ConnectionAbortedError):
        await pool.acquire()
    assert all(each.ended for each in server.connections)
