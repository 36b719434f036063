"""Connections and searches of the LDAP backend, with a library that is faked."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    def result3(self, *_: object) -> tuple[object, object, object, object]:
        if not self.results:
            return None, None, None, None
        number, found = self.results.pop(0)
        return ldap.RES_SEARCH_RESULT, found, number, []

    def wake(self) -> None:
        self._sockets[1].send(b"x")

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
        handle.error = ldap.SERVER_DOWN()
        with pytest.raises(LookupFailed, match="the connection was lost"):
            await find(connection)
        assert handle.is_closed


@pytest.mark.parametrize("responds", [True, False])
async def test_search_that_is_cancelled_is_abandoned_if_the_server_responds_at_all(
    *, responds: bool
) -> None:
    """Otherwise the connection is."""
    with connected() as (connection, handle):
        slow, other = await begin(connection), await begin(connection)
        if responds:
            handle.results = [(2, [ENTRY])]
            connection._on_readable()  # noqa: SLF001 - the socket is readable once more
            assert await other == [ENTRY[1]]
        slow.cancel()
        await asyncio.wait([slow, other], timeout=5)
        assert handle.abandoned == [1] * responds
        assert handle.is_closed is not responds
        assert (other.exception() is None) is responds


async def test_result_of_a_search_that_was_just_cancelled_delays_no_other() -> None:
    with connected() as (connection, handle):
        slow, other = await begin(connection), await begin(connection)
        slow.cancel()
        handle.results = [(1, [ENTRY]), (2, [ENTRY])]
        connection._on_readable()  # noqa: SLF001 - the socket is readable once more
        assert await other == [ENTRY[1]]
        assert slow.cancelled()


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
        self.handles: list[Handle] = []
        self.times_available = 0

    def connect(self, _: LdapOptions, uri: str, *, is_replica: bool) -> Bound:
        if uri in self.errors:
            raise self.errors[uri]
        if is_replica and uri in self.being_loaded:
            raise Unavailable("the server is a replica that is being loaded")
        handle = Handle()
        self.handles.append(handle)
        return handle, {}, uri not in self.being_loaded, uri

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
    servers.errors = {FIRST: ldap.BUSY(), SECOND: ldap.SERVER_DOWN()}
    backend = LdapBackend(LdapOptions.model_validate(GIVEN))
    backend.on_available(lambda _: servers.count_available())
    await backend.open()
    unreachable = "the server cannot be reached, or the connection was lost"
    assert backend.problem == f"{FIRST}: the server is busy; {SECOND}: {unreachable}"
    with pytest.raises(LookupFailed) as caught:
        await backend.find(ByNickname("alice"))
    assert caught.value.reason == backend.problem
    assert not caught.value.counts_against_breaker
    servers.errors[FIRST] = RuntimeError()  # as where no thread can be started for a while
    await until(lambda: backend.problem == "connecting failed with RuntimeError")
    assert servers.times_available == 0
    servers.errors.clear()
    await until(lambda: backend.problem is None)
    assert servers.times_available > 0
    assert ["trying again every" in each for each in caplog.messages[:3]] == [True, True, False]
    assert "connected to" in caplog.messages[2]
    await backend.close()


async def test_search_without_a_response_does_not_end_the_start(servers: Servers) -> None:
    clock = LoopClock()
    backend = LdapBackend(LdapOptions.model_validate(GIVEN))
    opening = asyncio.create_task(backend.open())
    await until(lambda: servers.handles and servers.handles[0].sent == 1)
    await clock.advance(backend.options.connect_timeout + 1)
    await opening
    await backend.close()


async def test_refused_credentials_are_reported_and_shown_to_no_other_server(
    servers: Servers,
) -> None:
    """Also where the first is down; afterwards the backend goes on by itself."""
    third = "ldap://127.0.0.1:3"
    servers.errors = {FIRST: ldap.SERVER_DOWN(), SECOND: Refused("no"), third: AssertionError()}
    opened = servers.pool(uris=[FIRST, SECOND, third])
    with pytest.raises(Refused):
        await opened.open()
    assert opened.problem == "no"
    servers.errors.clear()
    await until(lambda: opened.problem is None)
    await opened.close()


async def test_replaced_connections_are_closed(servers: Servers) -> None:
    opened = servers.pool(max_age="1ms")
    await opened.open()
    await until(lambda: len(servers.handles) >= 20)
    assert sum(not each.is_closed for each in servers.handles) <= 4
    await opened.close()
    # Two may be on their way; the library closes them.
    assert sum(not each.is_closed for each in servers.handles) <= 2


async def test_search_is_repeated_by_the_other_connection_if_the_first_is_lost(
    servers: Servers,
) -> None:
    opened = servers.pool()
    await opened.open()
    await until(lambda: servers.times_available == 1)  # the second is in use, too
    first, second = servers.handles
    first.error = ldap.SERVER_DOWN()
    second.results.append((1, [ENTRY]))
    search = asyncio.create_task(opened.search(find))
    await until(lambda: second.sent == 1)
    second.wake()
    assert await search == [ENTRY[1]]
    assert first.is_closed
    await opened.close()


async def test_search_is_repeated_by_a_new_connection_if_both_are_lost(servers: Servers) -> None:
    opened = servers.pool()
    await opened.open()
    await until(lambda: servers.times_available == 1)
    lost = 0

    async def find_by_third(connection: BoundConnection) -> str:
        nonlocal lost
        if lost == 2:
            return "found"
        lost += 1
        connection.lose(failure := Unavailable("the connection was lost"))
        await until(lambda: servers.times_available == lost + 1)
        raise failure

    assert await opened.search(find_by_third) == "found"
    await opened.close()


async def test_search_on_connections_that_are_replaced_is_repeated(servers: Servers) -> None:
    opened = servers.pool(max_age="60s")
    await opened.open()
    await until(lambda: servers.times_available == 1)
    search = asyncio.create_task(opened.search(find))
    await until(lambda: any(each.sent for each in servers.handles))
    clock = LoopClock()
    clock.forward(67.0)
    await until(lambda: all(each.is_closed for each in servers.handles[:2]))
    await until(lambda: any(each.sent for each in servers.handles[2:]))
    (last,) = [each for each in servers.handles[2:] if each.sent]
    last.results.append((1, [ENTRY]))
    last.wake()
    assert await search == [ENTRY[1]]
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
        return [self.found[filter_]] if filter_ in self.found else []

    async def first(
        self, filter_: str, _attribute: str | None = None, scope: str = ""
    ) -> dict[str, list[bytes]] | None:
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
    assert await search.find(directory, "alice") is None
    assert directory.searches == 5
    directory.found = {ANY: {}}
    clock.forward(1.0)
    with pytest.raises(Broken, match=FINDS_NOTHING):
        await search.find(directory, "alice")
