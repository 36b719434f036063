"""Services that connect to either of two servers with different users.

One server has lost its users, or is an older copy without the canary. Its "not found" must not be
trusted, even if the other server has the canary.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from urllib.parse import unquote

from soak.checker import Checker
from soak.directories import CANARY, RestDirectory
from soak.fault_catalogue import Scenario
from soak.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from soak.ldap_users import dn_of, entry_of
from soak.people import Person
from soak.postgres import row_of
from soak.reference import Reference, Source
from support.databases.ldap_server import ADMIN, INDEX, PASSWORD, PEOPLE, LdapServer, person
from support.databases.postgres_server import (
    Database,
    create_database,
    running_copy,
    running_server,
)
from support.http.scripted_server import a_request
from support.http.tcp_relay import Relay, relaying
from support.processes.service import KEY

MAX_AGE = 1.0
"""The ``max_age`` of the canary in seconds. A service changes to the other server in less time."""
_KEPT = 4.0
"""Seconds for which an HTTP cache keeps a response: longer than a server is away before a fault."""
_ALL = ("127.0.0.1",)
_CANARY = (
    f"canary: {{nickname: '@{CANARY.nickname}', card_number: '{CANARY.card}',"
    f" max_age: {MAX_AGE * 1000:.0f}ms}},\n     cache_ttl: {TIMES.ttl * 1000:.0f}ms"
)
_BACKEND = f"{_CANARY}, {BACKEND_LIMITS}"


class Copy(ABC):
    """The users on one of two servers. Each server is behind a relay."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    @abstractmethod
    def write(self, people: Collection[Person]) -> None:
        """Replace the users of the server by ``people``."""

    def leave(self) -> None:
        """Close all connections, and refuse new ones."""
        self.relay.bar(_ALL)

    def come(self) -> None:
        self.relay.bar(())


class TwoServers(Source):
    """A source of users with two servers. Each has all users and the canary."""

    def __init__(self, copies: Sequence[Copy], letter: str, reference: Reference) -> None:
        self.copies = copies
        super().__init__(letter, reference)

    def make(self) -> None:
        self.write()

    def write(self) -> None:
        for copy in self.copies:
            # The canary last: a partial write must not look complete.
            copy.write([*self.people.values(), CANARY])

    def scenarios(self) -> Iterator[Scenario]:
        """Yield each fault of each server. During the fault, the other server comes and goes."""
        contents: dict[str, Callable[[], list[Person]]] = {
            "emptied": list,
            "older copy": lambda: [*self.people.values()][::2],
            "without the canary": lambda: [*self.people.values()],
        }
        for number, copy in enumerate(self.copies, start=1):
            others = [each for each in self.copies if each is not copy]
            for name, content in contents.items():
                inject = partial(self._differing, copy, others, content)
                text = f"server {number} {name}"
                yield Scenario(text, self, inject, blind=False, harms_file=False)

    @asynccontextmanager
    async def _differing(
        self, copy: Copy, others: Sequence[Copy], content: Callable[[], list[Person]]
    ) -> AsyncIterator[None]:
        copy.leave()
        await asyncio.sleep(2 * MAX_AGE)  # until its canary must be looked up again
        await asyncio.to_thread(copy.write, content())
        copy.come()
        going = [asyncio.create_task(_coming_and_going(each)) for each in others]
        try:
            yield
        finally:
            for task in going:
                task.cancel()
            for each in self.copies:
                each.come()
            await asyncio.to_thread(self.write)


async def _coming_and_going(copy: Copy) -> None:
    random = Random(0)
    for change in cycle([copy.leave, copy.come]):
        change()
        await asyncio.sleep(10 ** random.uniform(-2.5, -0.3))


class LdapCopy(Copy):
    """Users as entries of an OpenLDAP server."""

    def __init__(self, relay: Relay, server: LdapServer) -> None:
        super().__init__(relay)
        self._server = server
        self._stored: dict[str, Person] = {}

    def write(self, people: Collection[Person]) -> None:
        import ldap  # noqa: PLC0415 - needed only for this engine

        wanted = {each.nickname: each for each in people}
        connection = ldap.initialize(self._server.uri)
        connection.simple_bind_s(ADMIN, PASSWORD)
        for name in self._stored.keys() - wanted.keys():
            connection.delete_s(dn_of(name))
        for name, each in wanted.items():
            if name not in self._stored:
                connection.add_s(dn_of(name), entry_of(each))
            elif self._stored[name] is not each:  # changed in place: it must never be missing
                title = (ldap.MOD_REPLACE, "title", [each.plan.encode()])
                connection.modify_s(dn_of(name), [title])
        connection.unbind_s()
        self._stored = wanted


class PostgresCopy(Copy):
    """Users as rows of a PostgreSQL server."""

    def __init__(self, relay: Relay, database: Database) -> None:
        super().__init__(relay)
        self._database = database

    def write(self, people: Collection[Person]) -> None:
        rows = ", ".join(map(row_of, people))
        insert = f"INSERT INTO users VALUES {rows};" if rows else ""
        self._database.run(f"BEGIN; DELETE FROM users; {insert} COMMIT")


class HttpCopy(Copy):
    """Users of an HTTP API like `RestDirectory`, optionally behind an HTTP cache."""

    def __init__(self) -> None:
        self._people: Collection[Person] = ()
        self._is_away = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.kept: dict[str, bytes] | None = None
        """Responses with the canary that the HTTP cache keeps for ever. ``None``: no cache."""

    def write(self, people: Collection[Person]) -> None:
        self._people = people

    def leave(self) -> None:
        self._is_away = True
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def come(self) -> None:
        self._is_away = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to all requests of a connection."""
        if self._is_away:
            writer.transport.abort()
            return
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                writer.write(self._respond(unquote((await a_request(reader)).decode())))
                await writer.drain()
        writer.close()

    def _respond(self, request: str) -> bytes:
        name = request.split(" ")[1].rpartition("/")[2]
        if self.kept is not None and "no-cache" not in request and name in self.kept:
            return self.kept[name]
        found = [each for each in self._people if name in (each.nickname, each.card)]
        response = RestDirectory.respond(self, found)  # type: ignore[arg-type]
        if found == [CANARY] and self.kept is not None:
            self.kept[name] = response
        return response

    def record(self, each: Person) -> dict[str, str]:
        return {"login": each.nickname, "card": each.card, "plan": each.plan}


class AgedHttpCopy(HttpCopy):
    """Users of an HTTP API behind an HTTP cache that ignores ``no-cache``, but sends ``Age``."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[str, tuple[float, bytes]] = {}

    def _respond(self, request: str) -> bytes:
        target, now = request.split(" ")[1], time.monotonic()
        stored_at, stored = self._stored.get(target, (-math.inf, b""))
        if now - stored_at < _KEPT:
            age = math.ceil(now - stored_at)
            return stored.replace(b"\r\n", b"\r\nAge: %d\r\n" % age, 1)
        response = super()._respond(request)
        if CANARY.nickname.encode() in response:
            self._stored[target] = now, response
        return response


@asynccontextmanager
async def running_two_ldap_servers(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run a service over two OpenLDAP servers, for at most ``max_seconds``."""
    async with AsyncExitStack() as stack:
        copies = []
        for name in ("slapd-1", "slapd-2"):
            # An entry outside of all searches, so the tree is never empty.
            kept = person("kept", "9")
            server = stack.enter_context(LdapServer(folder / name, persons=[kept], index=INDEX))
            copies.append(LdapCopy(await stack.enter_async_context(relaying(server.port)), server))
        uris = ", ".join(f"ldap://127.0.0.1:{each.relay.port}" for each in copies)
        backend = f"""\
  - {{name: l, kind: ldap, uris: [{uris}], bind: {{dn: '{ADMIN}', password: {PASSWORD}}},
     base_dn: '{PEOPLE}', by_nickname: {{filter: '(uid={{nickname}})'}},
     by_card: {{filter: '(employeeNumber={{card_number}})'}}, connect_timeout: 300ms, max_age: 2s,
     response: {{nickname: uid, card_number: employeeNumber, plan: title}},
     {_BACKEND}}}
"""
        yield [await _site(Builder(folder, max_seconds, stack), "ldap", copies, backend)]


@asynccontextmanager
async def running_two_postgres_servers(
    folder: Path, max_seconds: float
) -> AsyncIterator[list[Site]]:
    """Run a service over a PostgreSQL server and its copy, for at most ``max_seconds``."""
    async with AsyncExitStack() as stack:
        first = stack.enter_context(running_server())
        database = create_database(first, "users")
        database.write()
        database.run("GRANT SELECT ON users TO idv")
        second = stack.enter_context(running_copy(first))
        relays = [await stack.enter_async_context(relaying(each.port)) for each in (first, second)]
        databases = (database, Database(second, database.name))
        copies = [PostgresCopy(*each) for each in zip(relays, databases, strict=True)]
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in relays)
        dsn = database.dsn.replace(f"127.0.0.1:{first.port}", hosts)
        backend = (
            f"  - {{name: p, kind: postgres, dsn: '{dsn}&target_session_attrs=primary',"
            f" pool: {{max: 5}},\n     {_BACKEND}}}\n"
        )
        yield [await _site(Builder(folder, max_seconds, stack), "postgres", copies, backend)]


@asynccontextmanager
async def running_two_upstreams(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run services over two HTTP APIs, one behind each kind of cache, and another instance."""
    async with AsyncExitStack() as stack:
        build = Builder(folder, max_seconds, stack)

        async def backend(name: str, copy: HttpCopy, more: str = "") -> str:
            server = await asyncio.start_server(copy.serve, "127.0.0.1")
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            options = RestDirectory.config.replace("\n    ", "\n     ").strip()
            options = options.replace("\n     by_card", ",\n     by_card")
            options = options.replace("\n     response:", ",\n     response:")
            return (
                f"  - {{name: {name}, kind: upstream, base_url: 'http://127.0.0.1:{port}'{more},\n"
                f"     {options},\n     {_BACKEND}}}\n"
            )

        two, one, aged = [HttpCopy(), HttpCopy()], HttpCopy(), AgedHttpCopy()
        one.kept = {}
        far = HttpCopy()
        # The inner instance has no canary. It caches the canary for long, but no "not found".
        kept = f"match: '@{CANARY.nickname}|{CANARY.card}', cache_ttl: 1m, negative_ttl: 0s"
        others = f"cache_ttl: {TIMES.ttl * 1000:.0f}ms, negative_ttl: 0s"
        inner = (await backend("kept", far)).replace(_CANARY, kept)
        inner += (await backend("others", far)).replace(_CANARY, others)
        (behind,) = (await build.serve(inner=CONFIG + inner)).values()
        outer = (
            f"  - {{name: outer, kind: upstream, base_url: 'http://127.0.0.1:{behind.port}',"
            f" auth: {{kind: bearer, token: {KEY}}},\n     {_BACKEND}}}\n"
        )
        first = await backend("first", two[0], ", on_unavailable: continue")
        both = first + await backend("second", two[1])
        yield [
            await _site(build, "upstream", two, both),
            await _site(build, "cached", [one], await backend("cached", one)),
            await _site(build, "aged", [aged], await backend("aged", aged)),
            await _site(build, "outer", [far], outer),
        ]


async def _site(build: Builder, name: str, copies: Sequence[Copy], backends: str) -> Site:
    reference = Reference()
    source = await asyncio.to_thread(TwoServers, copies, name[0], reference)
    (service,) = (await build.serve(**{f"two-{name}": CONFIG + backends})).values()
    checker = Checker(reference, TIMES, name[0])
    return Site(f"two servers, {name}", [service.port], checker, [source], [*source.scenarios()])
