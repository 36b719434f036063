"""Connections and searches of the LDAP backend, with a library that is faked."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from support.databases.ldap_server import OPTIONS, require
from support.fakes.clock_and_backends import LoopClock
from support.http.http_server import until
from tornado_idv import Broken, ByNickname, LookupFailed, Unavailable

require()

from idv_ldap import pool  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402
from idv_ldap.connection import Bound, BoundConnection  # noqa: E402
from idv_ldap.errors import ldap  # noqa: E402
from idv_ldap.options import LdapOptions  # noqa: E402
from idv_ldap.pool import ConnectionPool  # noqa: E402
from idv_ldap.refusals import Refused  # noqa: E402
from idv_ldap.search import Search  # noqa: E402

FIRST, SECOND = "ldap://127.0.0.1:1", "ldap://127.0.0.1:2"
GIVEN = {**OPTIONS, "name": "staff", "kind": "ldap", "uris": [FIRST, SECOND]}
ENTRY = ("cn=alice", {"uid": [b"alice"]})


class Handle:
    """A connection of python-ldap, whose results arrive when a test says so."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.results: list[tuple[int, list[Any]]] = []
        self.abandoned: list[int] = []
        self.is_closed = False
        self._sockets = socket.socketpair()
        self.sent = 0

    def fileno(self) -> int:
        return self._sockets[0].fileno()

    def search_ext(self, *_: object, sizelimit: int, serverctrls: object) -> int:
        assert sizelimit == 2
        if self.error is not None:
            raise self.error
        self.sent += 1
        return self.sent

    def abandon_ext(self, number: int) -> None:
        self.abandoned.append(number)
        if self.error is not None:
            raise self.error

    def result3(self, *_: object) -> tuple[object, object, object, object]:
        if not self.results:
            return None, None, None, None
        number, found = self.results.pop(0)
        if number == 0:  # the connection is lost
            raise ldap.SERVER_DOWN
        return ldap.RES_SEARCH_RESULT, found, number, []

    def unbind_ext(self) -> None:
        self.is_closed = True
        for each in self._sockets:
            each.close()

    def __del__(self) -> None:
        """Close it, as python-ldap does; nothing else does where connecting was cancelled."""
        self.unbind_ext()


async def find(connection: BoundConnection) -> Any:
    return await connection.search("(uid=alice)", ["uid"])


@contextmanager
def connected(**changed: object) -> Iterator[tuple[BoundConnection, Handle]]:
    handle = Handle()
    connection = BoundConnection(handle, {}, LdapOptions.model_validate({**GIVEN, **changed}))
    yield connection, handle
    connection.lose(Broken("the test is over"))


async def begin(connection: BoundConnection) -> asyncio.Task[Any]:
    task = asyncio.create_task(find(connection))
    await asyncio.sleep(0)
    return task


async def test_filter_that_is_not_valid_leaves_the_connection() -> None:
    with connected() as (connection, handle):
        handle.error = ldap.FILTER_ERROR()
        with pytest.raises(Broken, match="the filter is not valid"):
            await find(connection)
        assert not handle.is_closed
        assert not os.get_blocking(descriptor := handle.fileno())
        handle.error = ldap.SERVER_DOWN()
        with pytest.raises(LookupFailed, match="the connection was lost"):
            await find(connection)
        assert handle.is_closed
        assert not asyncio.get_running_loop().remove_reader(descriptor)  # it may be reused
    with connected() as (connection, handle):
        search = await begin(connection)
        handle.results = [(0, [])]
        connection._on_readable()  # noqa: SLF001 - the socket is readable once more
        with pytest.raises(LookupFailed, match="the connection was lost") as lost:
            await search
        handle.error = RuntimeError("the handle is closed")
        with pytest.raises(Unavailable, match="the connection was lost") as caught:
            await connection.first("(uid=*)")
        assert caught.value.counts_against_breaker
        assert len({lost.value, caught.value, connection.lost.result()}) == 3  # callers change them


@pytest.mark.parametrize("responds", [True, False])
async def test_search_that_is_cancelled_is_abandoned_if_the_server_responds_at_all(
    *, responds: bool
) -> None:
    """Otherwise the connection is."""
    with connected() as (connection, handle):
        slow, other, late = [await begin(connection) for _ in range(3)]
        if responds:
            handle.results = [(2, [ENTRY])]
            connection._on_readable()  # noqa: SLF001 - the socket is readable once more
            assert await other == [ENTRY[1]]
        handle.error = ldap.SERVER_DOWN()  # of an abandon request
        slow.cancel()
        late.cancel()
        if responds:
            handle.results = [(1, [ENTRY])]  # just too late
            connection._on_readable()  # noqa: SLF001 - the socket is readable once more
        await asyncio.wait([slow, other, late], timeout=5)
        assert slow.cancelled()
        handle.results = [(1, [ENTRY])]  # too late
        connection._on_readable()  # noqa: SLF001 - the socket is readable once more
        assert slow.cancelled()
        assert handle.abandoned == [1, 3] * responds
        assert handle.is_closed is not responds
        assert (other.exception() is None) is responds
        assert connection.in_flight == 0


REFERENCE = (None, ["ldap://b"])


@pytest.mark.parametrize(
    ("references", "found", "expected"),
    [
        ("ignore", [REFERENCE, ENTRY, REFERENCE], [ENTRY[1]]),
        ("ignore", [REFERENCE], []),
        ("fail", [REFERENCE, ENTRY], [ENTRY[1]]),
        ("fail", [REFERENCE], None),
        ("fail", [], []),
    ],
)
async def test_references_are_no_entries(references: str, found: Any, expected: Any) -> None:
    """The failure says nothing of the server, and must not open the circuit breaker."""
    with connected(references=references) as (connection, handle):
        search = await begin(connection)
        handle.results = [(1, found)]
        connection._on_readable()  # noqa: SLF001 - the socket is readable once more
        if expected is None:
            with pytest.raises(Unavailable, match="on other servers") as caught:
                await search
            assert not caught.value.counts_against_breaker
        else:
            assert await search == expected


class Servers:
    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self.being_loaded: set[str] = set()
        self.names: list[str] = []
        self.handles: list[Handle] = []
        self.times_available = 0

    def connect(self, _: LdapOptions, uri: str, *, is_replica: bool) -> Bound:
        if uri in self.errors:
            raise self.errors[uri]
        if is_replica and uri in self.being_loaded:
            raise Unavailable("the server is a replica that is being loaded")
        handle = Handle()
        self.handles.append(handle)
        name = self.names.pop(0) if self.names else uri
        return handle, {}, uri not in self.being_loaded, name

    def count_available(self) -> None:
        self.times_available += 1

    def pool(self, **options: Any) -> ConnectionPool:
        given = LdapOptions.model_validate({**GIVEN, **options})
        return ConnectionPool(given, self.count_available)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(pool, "connect", servers.connect)
    monkeypatch.setattr(pool, "RETRY_INTERVAL", 0.001)
    return servers


async def test_outage_of_all_servers_and_its_end(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Lookups fail at once meanwhile, which says nothing of the next one."""
    caplog.set_level(logging.INFO, "idv_ldap")
    servers.errors = {FIRST: ldap.BUSY(), SECOND: ldap.NO_SUCH_OBJECT()}
    backend = LdapBackend(LdapOptions.model_validate(GIVEN))
    backend.on_available(lambda _: servers.count_available())
    await backend.open()
    missing = "base_dn does not exist, or bind.dn may not read it"
    assert backend.problem == f"{FIRST}: the server is busy; {SECOND}: {missing}"
    with pytest.raises(LookupFailed) as caught:
        await backend.find(ByNickname("alice"))
    assert caught.value.reason == backend.problem
    assert not caught.value.counts_against_breaker
    with pytest.raises(LookupFailed) as again:  # callers change what they catch
        await backend.find(ByNickname("alice"))
    assert again.value is not caught.value
    servers.errors[FIRST] = RuntimeError()  # as where no thread can be started for a while
    await until(lambda: backend.problem == "connecting failed with RuntimeError")
    assert servers.times_available == 0
    servers.errors.clear()
    await until(lambda: servers.times_available == 2)
    assert backend.problem is None
    assert ["trying again every" in each for each in caplog.messages[:3]] == [True, True, False]
    assert "connected to" in caplog.messages[2]
    caplog.clear()
    servers.errors = {FIRST: RuntimeError()}  # the next outage is logged, too
    for each in servers.handles:
        each.error = ldap.SERVER_DOWN()
    with pytest.raises(LookupFailed):
        await backend.find(ByNickname("alice"))
    await until(lambda: "RuntimeError; trying again" in caplog.text)
    await backend.close()
    assert len(asyncio.all_tasks()) == 1


async def test_search_without_a_response_does_not_end_the_start(servers: Servers) -> None:
    clock = LoopClock()
    backend = LdapBackend(LdapOptions.model_validate(GIVEN))
    opening = asyncio.create_task(backend.open())
    await until(lambda: servers.handles and servers.handles[0].sent == 1)
    await clock.advance(backend.options.connect_timeout + 1)
    await opening
    await backend.close()


async def test_refused_credentials_are_reported_and_shown_to_no_other_server(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first is down; afterwards the backend goes on by itself."""
    third, refused = "ldap://127.0.0.1:3", Refused(f"{SECOND}: no")
    servers.errors = {FIRST: ldap.SERVER_DOWN(), SECOND: refused, third: AssertionError()}
    opened = servers.pool(uris=[FIRST, SECOND, third])
    with pytest.raises(Refused):
        await opened.open()
    assert opened.problem == refused.reason
    for _ in range(3):  # a change of the password is used within a second
        opened.attempts.clear()
        await until(lambda: opened.attempts.get(SECOND) == "no")
    with monkeypatch.context() as patch:
        patch.setattr(pool.REFUSALS, "check", Mock(side_effect=Refused("paused")))
        servers.errors[FIRST] = AssertionError()  # no server is connected to during the pause
        await until(lambda: opened.problem == "paused")
    servers.errors.clear()
    await until(lambda: opened.problem is None)
    await opened.close()


async def test_failure_of_one_connection_is_reported_if_it_is_permanent(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    opened = servers.pool()
    await opened.open()
    await until(lambda: servers.times_available == 1)
    servers.errors = {FIRST: ldap.BUSY(), SECOND: ldap.SERVER_DOWN()}
    opened._open[0].lose(Unavailable("the test cuts it"))  # noqa: SLF001 - connections of which no lookup tells
    await until(lambda: "busy" in opened.attempts[FIRST])
    servers.errors[FIRST] = ldap.NO_SUCH_OBJECT()
    await until(lambda: caplog.messages)
    assert caplog.messages[0].endswith("; trying again every 60 s")
    await opened.close()


async def test_only_connections_to_a_later_server_are_replaced_soon_and_closed(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RETURN_INTERVAL", 0.001)
    steady, aging, moving = servers.pool(), servers.pool(max_age="1ms"), servers.pool()
    await steady.open()
    await until(lambda: servers.times_available == 1)
    for each, count in ((aging, 10), (moving, 20)):
        await each.open()
        await until(lambda count=count: len(servers.handles) >= count)
        await each.close()
        servers.errors = {FIRST: OSError()}
    assert not any(each.is_closed for each in servers.handles[:2])
    # Two of each may be on their way; the library closes them.
    assert sum(not each.is_closed for each in servers.handles[2:]) <= 4
    assert len(moving._open) <= 4  # noqa: SLF001 - connections of which no lookup tells
    await steady.close()
    assert servers.handles[0].is_closed


@pytest.mark.parametrize(("names", "sent"), [("aa", [1, 1]), ("ba", [0, 2]), ("ab", [0, 2])])
async def test_searches_use_one_server_behind_a_balancer_and_its_less_busy_connection(
    servers: Servers, names: str, sent: list[int]
) -> None:
    """Or the first in the list, as soon as it has a connection again."""
    servers.names, servers.errors = [*names], {FIRST: ValueError()} if names == "ab" else {}
    opened = servers.pool()
    await opened.open()
    servers.errors = {}
    await until(lambda: servers.times_available == 1)
    running = [asyncio.create_task(opened.search(find)) for _ in sent]
    await until(lambda: sum(each.sent for each in servers.handles) == 2)
    assert [each.sent for each in servers.handles] == sent
    await opened.close()
    await asyncio.wait(running)
    assert "the backend is closed" in str(running[0].exception())


async def test_search_is_repeated_by_a_new_connection_if_both_are_lost(servers: Servers) -> None:
    opened = servers.pool()
    await opened.open()
    await until(lambda: servers.times_available == 1)
    lost = 0

    async def find_by_third(connection: BoundConnection) -> str:
        nonlocal lost
        lost += 1
        if lost == 3:
            return "found"
        if lost == 4:
            raise Broken("the entry is invalid")
        connection.lose(failure := Unavailable("the connection was lost"))
        await until(lambda: servers.times_available == lost + 1)
        raise failure

    assert (await opened.search(find_by_third))[1] == "found"
    with pytest.raises(Broken, match="the entry is invalid"):  # no other connection is tried
        await opened.search(find_by_third)
    await opened.close()


async def test_server_that_had_a_context_csn_and_has_none_is_not_used(servers: Servers) -> None:
    """Until then, or where it is not required, a server needs none."""
    for options, problem in (
        ({}, f"{FIRST}: the server is a replica that is being loaded"),
        ({"require_context_csn": False}, None),
    ):
        servers.being_loaded = {SECOND}
        opened = servers.pool(uris=[FIRST], **options)
        await opened.open()
        await until(lambda opened=opened: len(opened._usable) == 2)  # noqa: SLF001 - connections of which no lookup tells
        servers.being_loaded = {FIRST, SECOND}
        for connection in opened._usable:  # noqa: SLF001 - connections of which no lookup tells
            connection.lose(Unavailable("the test cuts it"))
        await until(
            lambda opened=opened, problem=problem: (
                opened.problem == problem and (problem or len(opened._usable) == 2)  # noqa: SLF001 - connections of which no lookup tells
            )
        )
        await opened.close()


# The evidence for "not found": what else the filter finds

ANY = "(objectClass=*)"
NOT_EMPTY = "(|(!(objectClass=organizationalUnit))(hasSubordinates=TRUE))"
ALICE, BOB = {"uid": [b"alice"]}, {"uid": [b"bob"]}
FINDS_NOTHING = r"the filter finds no entry for any value \(\(uid=\*\)\)"


class Directory:
    """A connection to entries, each by the filters that find it."""

    def __init__(self, found: dict[str, dict[str, list[bytes]]]) -> None:
        self.found = found
        self.lost: Exception | None = None
        self.searches = 0

    async def search(self, filter_: str, _attributes: list[str]) -> list[dict[str, list[bytes]]]:
        self.searches += 1
        await asyncio.sleep(0)
        return [self.found[filter_]] if filter_ in self.found else []

    async def first(
        self, filter_: str, attribute: str | None = None, scope: str = ""
    ) -> dict[str, list[bytes]] | None:
        assert attribute == ("uid" if filter_ == "(uid=*)" else None)
        assert (scope == "subtree") == (filter_ in {ANY, NOT_EMPTY})
        return next(iter(await self.search(filter_, [])), None)

    def lose(self, failure: Exception) -> None:
        self.lost = failure


FOUND: dict[str, tuple[dict[str, dict[str, list[bytes]]], str | None]] = {
    "another entry": ({"(uid=*)": BOB, "(uid=bob)": BOB}, None),
    "another entry, which may not be read": ({"(uid=*)": {}}, None),
    "an empty tree": ({ANY: {}}, None),
    "no entry that the filter finds": ({ANY: {}, NOT_EMPTY: {}}, FINDS_NOTHING),
    "nothing that may be read": ({}, FINDS_NOTHING),
    "an index that is not filled": ({"(uid=*)": BOB}, "the server's index lacks a stored uid"),
}


@pytest.mark.parametrize(("found", "failure"), FOUND.values(), ids=FOUND)
async def test_not_found_needs_evidence(
    found: dict[str, dict[str, list[bytes]]], failure: str | None
) -> None:
    directory, search = Directory(found), Search("(uid={nickname})", ["uid"])
    if failure is None:
        assert await search.find(directory, "alice") is None
    else:
        with pytest.raises(Broken, match=failure):
            await search.find(directory, "alice")
    assert (directory.lost is not None) == bool(failure and "index" in failure)


async def test_evidence_is_of_a_second_and_a_tree_that_had_entries_is_not_empty() -> None:
    directory = Directory({"(uid=alice)": ALICE, "(uid=bob)": BOB})
    search = Search("(uid={nickname})", ["uid"])
    assert await search.find(directory, "bob") == BOB
    del directory.found["(uid=alice)"]
    assert [await search.find(directory, "alice") for _ in range(2)] == [None, None]
    assert directory.searches == 3  # none of them for evidence
    clock = LoopClock()
    clock.forward(1.0)
    both = await asyncio.gather(*(search.find(directory, "alice") for _ in range(2)))
    assert both == [None, None]
    assert directory.searches == 6
    with pytest.raises(Broken, match=FINDS_NOTHING):
        await search.find(Directory({ANY: {}}), "alice")  # evidence is of one connection
    directory.found = {"(uid=*)": ALICE, "(uid=alice)": ALICE}
    clock.forward(1.0)
    assert await search.find(directory, "carol") is None  # bob was removed
    directory.found = {ANY: {}}
    clock.forward(1.0)
    with pytest.raises(Broken, match=FINDS_NOTHING):
        await search.find(directory, "alice")
