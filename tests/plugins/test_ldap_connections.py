"""Connections of the LDAP backend, with a library that is faked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from support.databases.ldap_server import require
from support.http.http_server import until
from tornado_idv import Broken, LookupFailed
from tornado_idv.testing import make_backend

require()

from idv_ldap import connections  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402
from idv_ldap.connection import Connection  # noqa: E402
from idv_ldap.connections import Connections  # noqa: E402
from idv_ldap.library import ldap  # noqa: E402
from idv_ldap.options import LdapOptions  # noqa: E402
from idv_ldap.refusals import Refused  # noqa: E402

FIRST, SECOND = "ldap://127.0.0.1:1", "ldap://127.0.0.1:2"
ENTRY = ("cn=alice", {"uid": [b"alice"]})


class Handle:
    """A connection of python-ldap, whose results arrive when a test says so."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.results: list[tuple[int, list[Any]]] = []
        self.abandoned: list[int] = []
        self.is_closed = False
        self._sockets = socket.socketpair()
        self._numbers = count(1)

    def fileno(self) -> int:
        return self._sockets[0].fileno()

    def search_ext(self, *_: object, sizelimit: int) -> int:
        assert sizelimit == 2
        if self.error is not None:
            raise self.error
        return next(self._numbers)

    def abandon_ext(self, number: int) -> None:
        self.abandoned.append(number)

    def result3(self, *_: object) -> tuple[object, object, object, object]:
        if not self.results:
            return None, None, None, None
        number, found = self.results.pop(0)
        return ldap.RES_SEARCH_RESULT, found, number, []

    def unbind_ext(self) -> None:
        self.is_closed = True
        for each in self._sockets:
            each.close()

    def __del__(self) -> None:
        """Close it, as python-ldap does; nothing else does where connecting was cancelled."""
        self.unbind_ext()


class Connected:
    """A connection, and its handle."""

    def __init__(self) -> None:
        self.handle = Handle()
        self.connection = Connection(self.handle, FIRST)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.lose(Broken("the test is over"))

    async def begin(self) -> asyncio.Task[Any]:
        """Send a search, which waits for its result."""
        search = self.connection.search("", ldap.SCOPE_BASE, "(uid=alice)", ["uid"])
        task = asyncio.create_task(search)
        await asyncio.sleep(0)
        return task

    def receive(self, *numbers: int) -> None:
        """Let the results of these searches arrive at once."""
        self.handle.results += [(number, [ENTRY]) for number in numbers]
        self.connection._on_readable()


async def test_filter_that_is_not_valid_leaves_the_connection() -> None:
    with Connected() as connected:
        connected.handle.error = ldap.FILTER_ERROR()
        with pytest.raises(Broken, match="the filter is not valid"):
            await (await connected.begin())
        assert not connected.handle.is_closed
        connected.handle.error = ldap.SERVER_DOWN()
        with pytest.raises(LookupFailed, match="the connection was lost"):
            await (await connected.begin())
        assert connected.handle.is_closed


@pytest.mark.parametrize("responds", [True, False])
async def test_search_that_is_cancelled_is_abandoned_if_the_server_responds_at_all(
    *, responds: bool
) -> None:
    """Otherwise the connection is."""
    with Connected() as connected:
        slow, other = await connected.begin(), await connected.begin()
        if responds:
            connected.receive(2)
            assert await other == [ENTRY[1]]
        slow.cancel()
        await asyncio.wait([slow, other], timeout=5)
        assert connected.handle.abandoned == [1] * responds
        assert connected.handle.is_closed is not responds
        assert (other.exception() is None) is responds


async def test_result_of_a_search_that_was_just_cancelled_delays_no_other() -> None:
    with Connected() as connected:
        slow, other = await connected.begin(), await connected.begin()
        slow.cancel()
        connected.receive(1, 2)
        assert await other == [ENTRY[1]]
        assert slow.cancelled()


async def test_connection_that_is_replaced_is_closed_after_its_last_search() -> None:
    with Connected() as connected:
        searches = [await connected.begin(), await connected.begin()]
        connected.connection.retire()
        for number, search in enumerate(searches, start=1):
            assert not connected.handle.is_closed
            connected.receive(number)
            assert await search == [ENTRY[1]]
        assert connected.handle.is_closed


class Servers:
    """The servers by their URIs, each with the error that it responds with, if there is one."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self.times_available = 0

    def connect(self, _: LdapOptions, uri: str) -> Handle:
        if uri in self.errors:
            raise self.errors[uri]
        return Handle()

    def count_available(self) -> None:
        self.times_available += 1


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(connections, "connect", servers.connect)
    monkeypatch.setattr(connections, "RETRY_INTERVAL", 0.001)
    return servers


@pytest.fixture
def make(servers: Servers, tmp_path: Path) -> Callable[[], Connections]:
    def make() -> Connections:
        backend = make_backend(
            LdapBackend,
            tmp_path,
            uris=[FIRST, SECOND],
            base_dn="dc=example",
            by_nickname={"filter": "(uid={nickname})"},
            response={"nickname": "uid", "card_number": "uid", "plan": "uid"},
        )
        assert isinstance(backend.options, LdapOptions)
        return Connections(backend.options, servers.count_available)

    return make


async def test_problem_is_that_of_the_first_server_while_none_responds(
    servers: Servers, make: Callable[[], Connections]
) -> None:
    """Lookups fail at once then, which says nothing of the next one."""
    servers.errors = {FIRST: ldap.BUSY(), SECOND: ldap.SERVER_DOWN()}
    opened = make()
    await opened.open()
    assert opened.problem == f"{FIRST}: the server is busy"
    with pytest.raises(LookupFailed) as caught:
        await opened.search("(uid=alice)", ldap.SCOPE_BASE, ["uid"])
    assert caught.value.reason == opened.problem
    assert not caught.value.counts_against_breaker
    await opened.close()


async def test_backend_is_available_as_soon_as_a_server_is_back(
    servers: Servers, make: Callable[[], Connections]
) -> None:
    servers.errors = {FIRST: ldap.SERVER_DOWN(), SECOND: ldap.SERVER_DOWN()}
    opened = make()
    await opened.open()
    assert servers.times_available == 0
    servers.errors.clear()
    await until(lambda: opened.problem is None)
    assert servers.times_available > 0
    await opened.close()


async def test_refused_credentials_are_reported_and_shown_to_no_other_server(
    servers: Servers, make: Callable[[], Connections]
) -> None:
    """Also where the first is down; afterwards the backend goes on by itself."""
    third = "ldap://127.0.0.1:3"
    servers.errors = {FIRST: ldap.SERVER_DOWN(), SECOND: Refused("no"), third: AssertionError()}
    opened = make()
    opened._options = opened._options.model_copy(update={"uris": (FIRST, SECOND, third)})
    with pytest.raises(Refused):
        await opened.open()
    assert opened.problem == "no"
    servers.errors.clear()
    await until(lambda: opened.problem is None)
    await opened.close()
