"""Replicas that are being loaded, trees of several servers, and a handshake that hangs."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.databases.ldap_server import (
    ADMIN,
    INDEX,
    OPTIONS,
    PASSWORD,
    PEOPLE,
    SUFFIX,
    LdapServer,
    person,
    require,
)
from support.fakes.outcomes import outcome
from support.http.http_server import until
from support.http.tcp_relay import Relay, relaying
from tornado_idv import ByNickname, Unavailable
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import opened_backend

require()

from idv_ldap import pool  # noqa: E402
from idv_ldap.backend import LdapBackend  # noqa: E402
from idv_ldap.server import check_loaded  # noqa: E402

ALICE, BOB = person("alice", "1", "title: Pro"), person("bob", "2", "title: Pro")
PROVIDER = {"options": "moduleload syncprov", "database": "overlay syncprov"}
INDEXES = f"{INDEX}\nindex entryUUID,entryCSN eq"
BEING_LOADED = (
    f"the server is a replica that is being loaded: {SUFFIX} has no contextCSN "
    "(see require_context_csn)"
)
SUFFIX_IS_HIDDEN = (
    'access to dn.base="" by * read\n'
    f'access to dn.subtree="{PEOPLE}" by * read\n'
    "access to * by * none"
)
ROOT_IS_HIDDEN = 'access to dn.base="" by * none\naccess to * by * read'
START = Callable[..., LdapServer]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RETRY_INTERVAL", 0.05)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[START]:
    """Return a server, which is started unless it is a provider that is to be away."""
    servers: list[LdapServer] = []

    def make(*persons: str, starts: bool = True, **options: Any) -> LdapServer:
        server = LdapServer(tmp_path / str(len(servers)), persons, index=INDEXES, **options)
        servers.append(server)
        if starts:
            server.start()
        return server

    yield make
    for server in servers:
        server.stop()


def replica_of(provider: LdapServer, *, offers: bool) -> dict[str, str]:
    """Return the options of a replica; it offers replication to others by ``syncprov``."""
    lines = (
        f'syncrepl rid=1 provider={provider.uri} type=refreshAndPersist retry="1 +"\n'
        f"  searchbase={SUFFIX} bindmethod=simple binddn={ADMIN} credentials={PASSWORD}\n"
    )
    if not offers:
        return {"database": lines}
    return {**PROVIDER, "database": f"{lines}overlay syncprov"}


def backend_of(*servers: LdapServer, **options: Any) -> Any:
    uris = [each.uri for each in servers]
    base = PEOPLE.upper().replace(",", " , ")
    given = {"uris": uris, **OPTIONS, "base_dn": base, **options}
    return make_backend(LdapBackend, Path(), **given)


@pytest.mark.parametrize("offers", [True, False], ids=["offers replication", "option"])
async def test_replica_that_is_being_loaded_says_of_no_user_that_he_is_missing(
    make: START, *, offers: bool
) -> None:
    provider = make(ALICE, BOB, starts=False, **PROVIDER)
    replica = make(ALICE, **replica_of(provider, offers=offers))
    backend = backend_of(replica, **({} if offers else {"require_context_csn": True}))
    async with opened_backend(backend):
        for who in ("alice", "bob"):
            result = await outcome(backend, ByNickname(who))
            assert result == f"unavailable: {replica.uri}: {BEING_LOADED}"
        provider.start()
        await until(lambda: backend.problem is None)
        assert await outcome(backend, ByNickname("bob")) == "found"
        assert await outcome(backend, ByNickname("carol")) == "not found"


@pytest.mark.parametrize("access", [SUFFIX_IS_HIDDEN, ROOT_IS_HIDDEN], ids=["suffix", "root entry"])
async def test_context_csn_is_not_required_where_it_may_not_be_read(
    make: START, access: str
) -> None:
    given = replica_of(make(starts=False), offers=True)
    replica = make(ALICE, **{**given, "options": f"{given['options']}\n{access}"})
    async with opened_backend(backend_of(replica, bind=None)) as backend:
        assert await outcome(backend, ByNickname("alice")) == "found"
        assert await outcome(backend, ByNickname("bob")) == "not found"


def test_context_csn_is_that_of_the_longest_suffix_and_a_controller_is_synchronized() -> None:
    root = {"namingContexts": [b"dc=org", b"dc=x,dc=org"], "objectClass": [b"top"]}
    root |= {"supportedControl": [b"1.3.6.1.4.1.4203.1.9.1.1"], "isSynchronized": [b"TRUE"]}
    entries = {"": root, "dc=org": {}, "dc=x,dc=org": {"contextCSN": [b"1"]}}
    handle = SimpleNamespace(search_s=lambda name, *_: [(name, entries[name])])
    for base_dn, expected in (("ou=a,dc=x,dc=org", True), ("ou=a,dc=org", False), ("", False)):
        assert check_loaded(handle, base_dn, is_replica=None) is expected
    root["isSynchronized"] = [b"FALSE"]
    with pytest.raises(Unavailable, match="is a replica that is being loaded"):
        check_loaded(handle, "dc=x,dc=org", is_replica=False)


class HangingOnce(Relay):
    """Resets the first connection, and passes nothing on of the second, as a hung server."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.accepted < 2:
            self.accepted += 1
            self._writers.add(writer)
            if self.accepted == 1:
                writer.transport.abort()
        else:
            await super().serve(reader, writer)


async def test_handshake_that_hangs_does_not_block_the_next_attempt(
    make: START, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection is a handshake of ours, which decides nothing, and libldap may hang."""
    monkeypatch.setattr(pool, "_STEPS", 3)
    server = make(ALICE, options="require authc")
    tls = {"ca_file": f"{server.folder}/ca.pem"}
    async with relaying(server.tls_port, HangingOnce) as relay:
        uris = [f"ldaps://127.0.0.1:{relay.port}"]
        backend = backend_of(uris=uris, tls=tls, connect_timeout="200ms")
        async with opened_backend(backend):
            assert backend.problem == f"{uris[0]}: the server did not respond in time"
            await until(lambda: backend.problem is None)
            assert await outcome(backend, ByNickname("alice")) == "found"
            await until(lambda: len(backend._pool._open) == 2)  # noqa: SLF001 - connections of which no lookup tells


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
@pytest.mark.parametrize("accepts", [True, False])
async def test_server_that_hangs_is_left_after_the_timeout_of_a_step(
    make: START, monkeypatch: pytest.MonkeyPatch, scheme: str, *, accepts: bool
) -> None:
    monkeypatch.setattr(pool, "_STEPS", 1000)
    server = make(ALICE)
    with socket.create_server(("127.0.0.1", 0), backlog=int(accepts)) as hung, ExitStack() as stack:
        port = hung.getsockname()[1]
        if not accepts:
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        uris = [f"{scheme}://127.0.0.1:{port}", server.uri]
        async with opened_backend(backend_of(uris=uris, connect_timeout="500ms")) as backend:
            await until(lambda: backend.problem is None)
            assert await outcome(backend, ByNickname("alice")) == "found"


async def test_bind_that_hangs_stops_no_other_thread(make: START) -> None:
    """An interactive bind of python-ldap would hold the lock of the interpreter."""
    folder = make(ALICE, starts=False).folder
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    received, writers = asyncio.Event(), list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            while request := await reader.read(4096):
                if b"EXTERNAL" in request:
                    received.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listener:
        backend = backend_of(
            uris=[f"ldaps://127.0.0.1:{listener.sockets[0].getsockname()[1]}"],
            tls={"ca_file": f"{folder}/ca.pem"},
            bind={"sasl": "external"},
            connect_timeout="3s",
        )
        opening = asyncio.create_task(backend.open())
        async with asyncio.timeout(20):
            await received.wait()
        assert not opening.done()
        opening.cancel()
        await asyncio.wait([opening])
        for each in writers:
            each.transport.abort()


def reference(port: int) -> str:
    return (
        f"dn: ou=far,{PEOPLE}\nobjectClass: referral\nobjectClass: extensibleObject\nou: far\n"
        f"ref: ldap://127.0.0.1:{port}/ou=far\n\n"
    )


async def test_references_to_other_servers_are_neither_entries_nor_followed(make: START) -> None:
    accepted: list[object] = []
    async with await asyncio.start_server(
        lambda *connection: accepted.append(connection), "127.0.0.1", 0
    ) as other:
        server = make(ALICE, reference(other.sockets[0].getsockname()[1]))
        async with opened_backend(backend_of(server, timeout="1s")) as backend:
            assert await outcome(backend, ByNickname("alice")) == "found"
            assert await outcome(backend, ByNickname("bob")) == "not found"
    assert not accepted
