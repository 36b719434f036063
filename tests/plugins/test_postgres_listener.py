"""Notifications of changes in PostgreSQL, on connections that are faked, with a clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import pytest

from idv_postgres.listener import Listener
from idv_postgres.options import PostgresOptions
from idv_postgres.relation import Relation
from support.fakes.clock_and_backends import LoopClock
from tornado_idv import ByCard, ByNickname, Query


class Connection:
    def __init__(self, server: Harness) -> None:
        self.server = server
        self.address = "a:1"
        self.ended = False
        self.notify: Callable[[str], None] = print

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        await self.server.respond()
        assert channel == "idv_users"
        self.notify = lambda payload: callback(self, 1, channel, payload)

    async def fetchrow(self, _sql: str, table: str) -> tuple[object, str]:
        assert table == "public.users"
        self.server.checks += 1
        await self.server.respond()
        return self.server.files, f"0/{self.server.checks}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True


class Harness:
    """A listener and its server, which responds, hangs, or loses its connections."""

    def __init__(self, options: PostgresOptions) -> None:
        self.clock = LoopClock()
        self.connections: list[Connection] = []
        self.error: Exception | None = None
        self.hangs = False
        self.checks, self.last = 0, ""
        self.files: object = [[1, 2]]
        self.purges: list[set[Query]] = []
        self.required: list[str | None] = []
        executor = SimpleNamespace(
            lookups=SimpleNamespace(relation=Relation(1, "public.users", (), "now")),
            standbys=SimpleNamespace(require=self.required.append),
        )
        self.database = SimpleNamespace(executor=executor, servers=())
        self.listener = Listener(options, self.database, self.purge)
        self.listener._connector = self  # noqa: SLF001 - a server that is scripted

    async def connect(self) -> Connection:
        if self.error is not None:
            raise self.error
        self.connections.append(Connection(self))
        return self.connections[-1]

    async def respond(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def purge(self, *queries: Query) -> None:
        self.purges.append(set(queries))

    def take(self) -> list[set[Query]]:
        """Return the purges since the last call; an empty set is one of everything."""
        purges, self.purges = self.purges, []
        return purges

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            await self.clock.advance(0.05)
            await asyncio.sleep(0)

    async def notify(self, *payloads: str) -> list[set[Query]]:
        """Notify of changes, and return what is purged."""
        for payload in payloads:
            self.connections[-1].notify(payload)
        await self.advance(0.3)
        return self.take()


@asynccontextmanager
async def listening(
    *, folds: bool = False, notify: Any = None, hangs: bool = False
) -> AsyncIterator[Harness]:
    given = {"name": "members", "kind": "postgres", "dsn": "postgresql://h/x"}
    given |= {"notify": notify} if notify else {}
    context = {"nickname_case": "fold" if folds else "preserve"}
    harness = Harness(PostgresOptions.model_validate(given, context=context))
    harness.hangs = hangs
    task = asyncio.create_task(harness.listener.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield harness
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert all(each.ended for each in harness.connections)


async def test_each_connection_that_listens_is_another_session_from_its_purge_on() -> None:
    sessions: list[str | None] = []
    async with listening(hangs=True) as harness:
        assert harness.listener.session is None
        harness.listener._purge = lambda: sessions.append(harness.listener.session)  # noqa: SLF001 - a server that is scripted
        harness.hangs = False
        for error in (None, OSError(), None):
            harness.error = error
            await harness.advance(3)
    assert len({*sessions}) == 2
    assert None not in sessions


async def test_users_that_change_together_are_purged_at_once() -> None:
    """Each purge drops every "not found"."""
    async with listening() as harness:
        harness.take()
        harness.connections[-1].notify("alice")
        await harness.advance(0.2)
        assert harness.take() == []
        expected = {ByNickname("alice"), ByCard("card:1"), ByNickname("Bob")}
        assert await harness.notify("card:card:1", "@Bob", "alice") == [expected]
        assert await harness.notify("cards") == [{ByNickname("cards")}]


async def test_payload_for_everything_and_many_users_purge_everything() -> None:
    async with listening() as harness:
        harness.take()
        assert await harness.notify("alice", "") == [set()]
        assert await harness.notify("alice", "*") == [set()]
        names = [f"user{number}" for number in range(101)]
        assert await harness.notify(*names) == [set()]
        assert await harness.notify(*names[:100]) == [set(map(ByNickname, names[:100]))]


async def test_nicknames_are_folded_as_in_queries() -> None:
    async with listening(folds=True) as harness:
        harness.take()
        expected = {ByNickname("alice"), ByNickname("Ä")}
        assert await harness.notify("ALICE", "Ä") == [expected]


@pytest.mark.parametrize("fault", ["lost", "hanging"])
async def test_connection_is_checked_often(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """What changed meanwhile is not known; the outage is logged once, and its end."""
    caplog.set_level(logging.INFO)
    async with listening() as harness:
        assert harness.take() == [set()]
        await harness.advance(3.5)
        assert harness.take() == []
        assert harness.checks == 1 + 3
        harness.error = ConnectionRefusedError() if fault == "lost" else None
        harness.hangs = fault == "hanging"
        await harness.advance(6)
        assert harness.take() == []
        assert all(each.ended for each in harness.connections)
        harness.error, harness.hangs = OSError(9, "other"), False
        await harness.advance(3)
        harness.error = None
        await harness.advance(3)
        assert harness.take() == [set()]
        assert not harness.connections[-1].ended
        assert await harness.notify("alice") == [{ByNickname("alice")}]
        harness.error = OSError(9, "other")
        await harness.advance(3)
    interrupted, _, again, _ = [each.getMessage() for each in caplog.records]
    assert interrupted.startswith("backend members: notifications of changes are interrupted: ")
    assert interrupted.endswith("; trying again every 1 s")
    assert again == "backend members: notifications of changes are received again"


async def test_everything_is_purged_when_the_files_of_the_table_are_others() -> None:
    async with listening() as harness:
        harness.take()
        for files in ([[1, 3]], [[1, 3], [4, 5]], None):
            harness.files = files
            await harness.advance(3)
            assert harness.take() == [set()]
            await harness.advance(3)
            assert harness.take() == []


async def test_position_of_a_purge_is_required_and_nothing_is_stored_until_it_is_known() -> None:
    async with listening() as harness:
        assert harness.required == ["0/1"]
        await harness.advance(3)
        assert harness.required == ["0/1"]
        checks = harness.checks
        await harness.notify("alice")
        assert harness.required == ["0/1", None, f"0/{checks + 1}"]
        harness.files = [[1, 3]]
        await harness.advance(1.1)
        assert harness.required[3:] == [f"0/{checks + 2}"]
        with mock.patch.object(harness, "respond", partial(asyncio.sleep, 0.4)):
            await harness.notify("alice")
            await harness.notify("bob")  # while the position for alice is read
            await harness.advance(1)
        assert harness.required[4:] == [None, None, f"0/{checks + 4}"]
        harness.hangs = True
        await harness.notify("alice")
        assert harness.required[7:] == [None]
        await harness.advance(2.5)
        assert harness.required[7:] == [None]


@pytest.mark.parametrize("notify", [None, {"dsn": "postgresql://primary/x"}])
async def test_it_follows_lookups_to_another_primary_alone(notify: object) -> None:
    async with listening(notify=notify) as harness:
        for servers, count in (
            ([("a:1", "primary"), ("b:1", "standby")], 1),
            ([("b:1", "primary"), ("a:1", "standby")], 1 if notify else 2),
        ):
            harness.database.servers = servers
            await harness.advance(2.5)
            assert len(harness.connections) == count
        assert harness.last == ("" if notify else "b:1")
