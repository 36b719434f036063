"""The PostgreSQL backend as it finds its database down and there again, with one that is faked."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from asyncpg import (
    InvalidTextRepresentationError,
    PostgresError,
    QueryCanceledError,
    TooManyConnectionsError,
    UndefinedTableError,
)

from idv_postgres import errors
from idv_postgres.backend import PostgresBackend
from idv_postgres.lookups import Lookups, Result
from support.fakes.clock_and_backends import LoopClock
from support.fakes.outcomes import outcome
from tornado_idv import BackendResult, Broken, ByCard, ByNickname, Unavailable
from tornado_idv.kit.testing import make_backend

ROW = ("Free", "1", "alice", None)
REFUSED = ConnectionRefusedError(111, "Connection refused")
LOST = "unavailable: the server cannot be reached: Connection refused"


class Harness:
    """A backend and its database, which responds as a test says; an exception is raised."""

    def __init__(self, timeout: str = "60s") -> None:
        dsn = "postgresql://idv@127.0.0.1:1/idv"
        self.backend = make_backend(PostgresBackend, Path(), dsn=dsn, timeout=timeout)
        self.backend._database = self  # noqa: SLF001 - a server that is scripted
        self.lookups: Any = Lookups({ByNickname: "nickname", ByCard: "card"}, servers={""})
        self.rows: Any = [ROW]
        self.probing: Exception | None = None
        self.connections = True
        self.pool = self
        self.calls: list[str] = []
        self.clock = LoopClock()
        self.available = 0
        self.verified = 0
        self.backend.on_available(self._on_available)

    async def open(self) -> Lookups:
        self.calls.append("open")
        if isinstance(self.lookups, Exception):
            raise self.lookups
        return self.lookups

    async def inspect(self, *, in_order: bool = False) -> Lookups:
        self.calls.append("inspect in order" if in_order else "inspect")
        await self.inspecting()
        if isinstance(self.lookups, Exception):
            raise self.lookups
        return replace(self.lookups)

    async def probe(self) -> None:
        self.calls.append("probe")
        if self.probing is not None:
            raise self.probing

    async def fetch(self, _sql: str, value: str) -> Any:
        self.calls.append(value)
        if isinstance(self.rows, Exception):
            raise self.rows
        return Result(self.rows)

    @property
    def servers(self) -> list[tuple[str, str]]:
        return [("127.0.0.1:1", self.role)] if self.connections else []

    role, problem, wanted_role = "primary", None, None

    async def observe(self) -> None:
        pass

    move = inspecting = observe
    follows = mock.AsyncMock(side_effect=PostgresError)

    def terminate(self) -> None:
        self.calls.append("terminate")

    async def close(self) -> None:
        self.calls.append("close")

    def _on_available(self, verified: bool) -> None:  # noqa: FBT001 - the backend's
        self.available += 1
        self.verified += verified

    async def advance(self, seconds: float) -> None:
        """Advance the clock in steps of a retry interval, which is 1 s."""
        for _ in range(round(seconds * 4)):
            await self.clock.advance(0.25)
            await asyncio.sleep(0)

    def count(self, call: str) -> int:
        return self.calls.count(call)

    async def lose(self) -> None:
        """Lose the connection in a lookup, and find the server down."""
        self.rows = self.probing = self.lookups = REFUSED
        assert await outcome(self.backend) == LOST
        await asyncio.sleep(0)

    def repair(self) -> None:
        self.rows, self.probing = [ROW], None
        self.lookups = Lookups({ByNickname: "nickname", ByCard: "card"}, servers={""})


async def hang(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(time_limit: str = "60s") -> AsyncIterator[Harness]:
    harness = Harness(time_limit)
    await harness.backend.open()
    try:
        yield harness
    finally:
        await harness.backend.close()


async def test_closed_backend_is_unavailable_and_does_nothing_more() -> None:
    before = asyncio.all_tasks()
    async with serving() as harness:
        assert await outcome(harness.backend) == "found"
        harness.inspecting = hang
        harness.rows = REPLACED
        lookup = asyncio.create_task(harness.backend.find(ByNickname("alice")))
        await asyncio.sleep(0.01)
        lookup.cancel()
    assert harness.calls[-1] == "close"
    assert await outcome(harness.backend) == "unavailable: the backend is closed"
    assert asyncio.all_tasks() == before


async def test_server_that_hangs_at_the_start_is_waited_for_5_s() -> None:
    harness = Harness()
    harness.open = hang
    opening = asyncio.create_task(harness.backend.open())
    await asyncio.sleep(0)
    await harness.advance(4.75)
    assert not opening.done()
    await harness.advance(0.25)
    await opening
    assert await outcome(harness.backend) == "unavailable: the server did not respond in time"
    await harness.backend.close()


async def test_server_is_connected_to_once_a_second_while_it_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lookups meanwhile do not call it, and do not count for the circuit breaker.

    Each outage is logged once, and another reason.
    """
    caplog.set_level(logging.INFO)
    async with serving() as harness:
        for outage in (1, 2):
            terminated = harness.count("terminate")
            await harness.lose()
            assert harness.count("terminate") == terminated + 1
            before, looked_up = harness.count("open"), harness.count("alice")
            await harness.advance(3)
            lookups = [harness.backend.find(ByNickname("alice")) for _ in range(2)]
            first, other = await asyncio.gather(*lookups, return_exceptions=True)
            assert first is not other  # a caller may change its own
            assert first.counts_against_breaker is False
            assert (harness.count("open") - before, harness.count("alice")) == (3, looked_up)
            assert (harness.available, harness.verified) == (outage - 1, outage - 1)
            harness.repair()
            await harness.advance(6)
            assert harness.count("open") - before == 4
            assert (harness.available, harness.verified) == (outage, outage)
            assert await outcome(harness.backend) == "found"
        await harness.lose()
        harness.lookups = UndefinedTableError("gone")
        await harness.advance(2)
        assert (await outcome(harness.backend)).startswith("broken: the table is missing")
    logged = [each.getMessage().partition(";")[0] for each in caplog.records]
    down = "backend tested: the server cannot be reached: Connection refused"
    missing = "backend tested: the table is missing (SQLSTATE 42P01): gone"
    assert logged == [*[down, "backend tested: connected"] * 2, down, missing]


@pytest.mark.parametrize(
    ("error", "ending", "counts"),
    [
        (TimeoutError(), "the server did not respond in time", False),
        (REFUSED, "the server cannot be reached: Connection refused", False),
        (TooManyConnectionsError("x"), "the server has no connection left", False),
        (QueryCanceledError("x"), "the query took too long", True),
    ],
    ids=["timeout", "lost", "full", "slow"],
)
async def test_server_is_probed_after_a_failure_of_the_connection_alone(
    error: Exception, ending: str, *, counts: bool
) -> None:
    async with serving() as harness:
        harness.rows = error
        with pytest.raises((Unavailable, Broken), match=ending) as caught:
            await harness.backend.find(ByNickname("alice"))
        assert caught.value.counts_against_breaker is counts
        await harness.advance(1)
        assert (harness.count("probe"), harness.available) == (1, 1)
        harness.rows = UndefinedTableError("x")
        assert (await outcome(harness.backend)).startswith("broken: the table is missing")
        await harness.advance(1)
        assert harness.count("probe") == 1


async def test_server_is_probed_once_a_second_at_most() -> None:
    """Also after a lookup that is cancelled, as the guard does when it takes too long."""
    async with serving("2s") as harness:
        with mock.patch.object(harness, "fetch", hang):
            lookup = asyncio.create_task(harness.backend.find(ByNickname("alice")))
            await asyncio.sleep(0)
            lookup.cancel()
            await harness.advance(1)
        assert harness.count("probe") == 1
        await harness.advance(1)
        harness.rows = TimeoutError()
        for _ in range(3):
            await outcome(harness.backend)
        await harness.advance(0.25)
        assert harness.count("probe") == 2
        await outcome(harness.backend)
        await harness.advance(0.5)
        assert harness.count("probe") == 2
        await harness.advance(0.5)
        assert harness.count("probe") == 3
        harness.observe = hang  # of a standby
        await harness.advance(3)
        assert harness.count("probe") == 4


@pytest.mark.parametrize(
    ("error", "has_connections", "is_down"),
    [
        (REFUSED, True, True),
        (TimeoutError(), True, True),
        (TooManyConnectionsError("x"), True, False),
        (TooManyConnectionsError("x"), False, True),
        (PostgresError("x"), True, False),
    ],
    ids=["refused", "hanging", "full with connections", "full without", "other"],
)
async def test_backend_is_down_if_the_probe_is_lost_or_no_connection_is_left(
    error: Exception, *, has_connections: bool, is_down: bool
) -> None:
    async with serving() as harness:
        harness.rows, harness.probing = REFUSED, error
        harness.connections = has_connections
        await outcome(harness.backend)
        await asyncio.sleep(0)
        harness.rows = [ROW]
        assert (await outcome(harness.backend) == "found") is not is_down
        assert harness.available == 0


async def test_table_is_checked_every_10_s_and_lookups_are_verified_by_it() -> None:
    """Not while lookups fail, which each cause a probe."""
    async with serving() as harness:
        await harness.advance(9.5)
        assert harness.count("inspect in order") == 0
        await harness.advance(1)
        assert (harness.count("inspect in order"), harness.verified) == (1, 1)
        harness.rows = TimeoutError()
        for _ in range(15):
            await outcome(harness.backend)
            await harness.advance(1)
        assert (harness.count("inspect in order"), harness.verified) == (1, 1)
        harness.repair()
        await harness.advance(12)
        assert (harness.count("inspect in order"), harness.verified) == (2, 2)


async def test_use_of_other_servers_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as harness:
        harness.wanted_role, harness.move = "standby", mock.AsyncMock(side_effect=PostgresError)
        for harness.connections in (True, False, True):
            await harness.advance(10)
        harness.role, harness.wanted_role = "standby", None
        await harness.advance(10)
        assert harness.move.await_count > 2  # an error of one attempt is not the end
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize("error", [QueryCanceledError("x"), TimeoutError()])
async def test_check_that_waits_for_a_lock_leaves_it_to_a_probe(error: Exception) -> None:
    async with serving() as harness:
        harness.lookups = error
        await harness.advance(13)
        assert (harness.count("inspect in order"), harness.count("probe")) == (1, 1)
        assert (harness.available, harness.verified) == (1, 0)
        assert await outcome(harness.backend) == "found"


REPLACED = InvalidTextRepresentationError(f'invalid input syntax for boolean: "{errors.REPLACED}"')


async def test_rows_of_another_table_are_believed_after_a_check() -> None:
    """One check for all who wait, after which the lookups are repeated."""
    async with serving() as harness:
        harness.rows = REPLACED
        replaced = "unavailable: the table was replaced by another one"
        assert await outcome(harness.backend) == replaced  # the check finds no change
        assert harness.count("inspect") == 1
        harness.lookups = Lookups({ByNickname: "other", ByCard: "other"}, servers={""})

        async def repair() -> None:
            harness.rows = []
            await asyncio.sleep(0)

        harness.inspecting = repair
        queries = [ByNickname("x"), ByCard("1")] * 3
        lookups = [outcome(harness.backend, each) for each in queries]
        assert await asyncio.gather(*lookups) == ["not found"] * 6
        assert harness.count("inspect") == 2


async def test_check_goes_on_when_the_lookup_that_began_it_is_out_of_time() -> None:
    """On a busy machine each lookup would begin it again, and none would come to its end."""
    async with serving() as harness:
        going_on = asyncio.Event()

        async def wait_and_repair() -> None:
            await going_on.wait()
            harness.rows = [ROW]

        harness.inspecting = wait_and_repair
        harness.lookups = replace(harness.lookups, servers={"another"})
        harness.rows = REPLACED
        for _ in range(3):
            waiting = asyncio.create_task(harness.backend.find(ByNickname("alice")))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
        going_on.set()
        assert await outcome(harness.backend) == "found"
        assert harness.count("inspect") == 1


async def test_lookup_waits_for_a_check_for_half_of_its_time() -> None:
    """The guard's own timeout would count for the circuit breaker."""
    async with serving("4s") as harness:
        harness.inspecting = hang
        harness.rows = REPLACED
        lookup = asyncio.create_task(harness.backend.find(ByNickname("alice")))
        await asyncio.sleep(0)
        await harness.advance(2.25)
        assert lookup.done()
        with pytest.raises(Unavailable, match="has not been checked yet") as caught:
            lookup.result()
        assert not caught.value.counts_against_breaker


async def test_not_found_of_a_server_that_was_not_checked_is_not_believed() -> None:
    async with serving() as harness:
        result = Result([], origin="b")

        async def fetch(_sql: str, _value: str) -> Result:
            return result

        harness.fetch = fetch
        reason = "the server has not been checked yet"
        assert await outcome(harness.backend) == f"unavailable: {reason}"
        assert harness.count("inspect") == 1
        harness.lookups = replace(harness.lookups, servers={"b"})
        assert await outcome(harness.backend) == "not found"
        assert harness.count("inspect") == 2
        result = Result([ROW], origin="a")
        assert await outcome(harness.backend) == "found"
        assert harness.count("inspect") == 2
        result = Result([], "b is a standby that may be behind", origin="b")
        with pytest.raises(Unavailable, match="may be behind") as caught:
            await harness.backend.find(ByNickname("alice"))
        assert not caught.value.counts_against_breaker
        assert not caught.value.memoized
        result = Result([ROW], "b is a standby that may be behind", storable=False, origin="b")
        found = await harness.backend.find(ByNickname("alice"))
        assert found == BackendResult(
            result.user, ttl=harness.backend.options.max_lag, storable=False
        )


async def test_backend_that_a_slow_check_takes_down_connects_again_within_a_second() -> None:
    """After one check, whose error is that of all lookups that wait."""
    async with serving() as harness:

        async def fail_slowly() -> None:
            await asyncio.sleep(3)
            harness.connections = False
            raise Broken("wrong table")

        harness.inspecting = fail_slowly
        harness.rows = REPLACED
        lookups = (harness.backend.find(ByNickname("alice")) for _ in range(3))
        waiting = asyncio.gather(*lookups, return_exceptions=True)
        await harness.advance(3.5)
        assert [*map(str, await waiting)] == ["wrong table"] * 3
        assert len({*map(id, await waiting)}) == 3  # callers change their own
        assert harness.count("inspect") == 1
        harness.inspecting = harness.observe
        harness.repair()
        await harness.advance(2)
        assert await outcome(harness.backend) == "found"


async def test_check_that_ends_while_the_backend_is_down_does_not_bring_it_up() -> None:
    """Its pool is closed, so only an attempt to connect does."""
    async with serving() as harness:
        going_on = asyncio.Event()
        harness.inspecting = going_on.wait
        harness.rows = REPLACED
        waiting = asyncio.create_task(outcome(harness.backend))
        await asyncio.sleep(0)
        with mock.patch.object(harness, "fetch", hang):
            hanging = asyncio.create_task(outcome(harness.backend))
            await asyncio.sleep(0)
        await harness.lose()
        hanging.cancel()
        harness.rows = [ROW]
        harness.lookups = Lookups({ByNickname: "other", ByCard: "other"}, servers={""})
        going_on.set()
        assert await waiting == LOST
        harness.lookups = REFUSED
        assert await outcome(harness.backend) == LOST
        harness.repair()
        await harness.advance(1)
        assert await outcome(harness.backend) == "found"
