"""Sources that differ in a secret alone: no answer of one is ever given as that of the other."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import ClassVar

import pytest

from support.databases.postgres_server import (
    PASSWORD,
    PostgresServer,
    create_database,
    stopped,
    verifier,
)
from support.databases.redis_server import RedisServer, running_server
from support.http.live_directory import LiveDirectory
from support.http.threaded_server import serving_in_thread
from support.processes.admin import ask_admin
from support.processes.process import ServiceProcess, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv.model import User

ALICE = User("Free", "4000123412341234", "alice")
OTHER_ALICE = User("Pro", "4000123412341234", "alice")
BOB = User("Pro", "4001", "bob")
_CACHE = "cache: {ttl: 1h, negative_ttl: 1h, snapshot: answers.snapshot}\n"


@dataclass
class Sources:
    """Two sources: @alice is ``Free`` in the first, ``Pro`` in the second, which has @bob, too.

    ``backend`` has one replacement field, for the ``secrets`` that select them.
    """

    backend: str
    secrets: tuple[str, str]
    down: Callable[[], AbstractContextManager[None]]
    """A context in which no source responds."""


class Tenants(LiveDirectory):
    """An upstream whose token selects the tenant."""

    tenants: ClassVar[dict[str, list[User]]] = {"a" * 20: [ALICE], "b" * 20: [OTHER_ALICE, BOB]}

    def users_of(self, fields: Message) -> list[User]:
        return self.tenants[fields["Authorization"].removeprefix("Bearer ")]


@contextmanager
def tenants() -> Iterator[Sources]:
    with serving_in_thread(Tenants()) as server:

        @contextmanager
        def down() -> Iterator[None]:
            server.down |= {"@alice", "@bob"}
            yield
            server.down.clear()

        backend = f"kind: upstream, base_url: '{server.url}', auth: {{kind: bearer, token: SECRET}}"
        one, two = server.tenants
        yield Sources(backend, (one, two), down)


@contextmanager
def redis_databases() -> Iterator[Sources]:
    with running_server() as server:
        server.write(OTHER_ALICE, BOB)
        server.run("SWAPDB", "0", "1")
        server.add(ALICE)
        server.run("SET", "ready", "1")

        @contextmanager
        def down() -> Iterator[None]:
            server.stop()
            yield
            server.start()

        urls = server.url, server.url.removesuffix("0") + "1"
        yield Sources("kind: redis, url: SECRET", urls, down)


@contextmanager
def postgres_databases(server: PostgresServer) -> Iterator[Sources]:
    with (
        closing(create_database(server, "sources_one")) as one,
        closing(create_database(server, "sources_two")) as two,
    ):
        one.write(ALICE)
        two.write(OTHER_ALICE, BOB)
        dsns = one.dsn, two.dsn
        yield Sources("kind: postgres, dsn: SECRET", dsns, lambda: stopped(one))


@pytest.fixture(params=["postgres", "redis", "upstream"])
def sources(request: pytest.FixtureRequest) -> Iterator[Sources]:
    if request.param == "postgres":
        context = postgres_databases(request.getfixturevalue("postgres_server"))
    else:
        context = redis_databases() if request.param == "redis" else tenants()
    with context as found:
        yield found


@pytest.fixture
def shared() -> Iterator[RedisServer]:
    with running_server() as server:
        yield server


@contextmanager
def served(
    folder: Path, sources: Sources, secret: str, more: str = _CACHE
) -> Iterator[ServiceProcess]:
    config = folder / "config.yaml"
    backend = sources.backend.replace("SECRET", f"'{secret}'")
    config.write_text(f"{CONFIG}  - {{name: users, {backend}}}\n{more}admin: {{port: 0}}\n")
    with running(config) as service:
        yield service


def answers(service: ServiceProcess) -> tuple[str, int]:
    """Return the plan of @alice, and the status of @bob."""
    client = Client(service.port)
    found = client.by_input("@alice")
    assert found.status == 200
    return json.loads(found.body)["plan"], client.by_input("@bob").status


def test_shared_cache_is_not_shared_by_two_sources(
    tmp_path: Path, sources: Sources, shared: RedisServer
) -> None:
    cache = f"shared_cache: {{kind: redis, url: '{shared.url}', timeout: 1s, secret: {'x' * 32}}}\n"
    one, two = sources.secrets
    for secret, expected, size in [(one, ("Free", 404), 3), (two, ("Pro", 200), 5)]:
        with served(tmp_path, sources, secret, cache) as service:
            assert answers(service) == expected
            # Two answers for each source, and the marks.
            eventually(lambda size=size: shared.run("DBSIZE") == b":%d\r\n" % size)
    with sources.down(), served(tmp_path, sources, two, cache) as service:
        assert answers(service) == ("Pro", 200)


def test_snapshot_of_another_source_is_ignored(tmp_path: Path, sources: Sources) -> None:
    one, two = sources.secrets
    with served(tmp_path, sources, one) as service:
        assert answers(service) == ("Free", 404)
        service.stop()
    with sources.down():
        with served(tmp_path, sources, two) as service:
            assert Client(service.port).by_input("@alice").status == 503
            assert "written with other settings of backends" in service.read_log()
            service.process.kill()
        with served(tmp_path, sources, one) as service:
            assert b"Free" in Client(service.port).by_input("@alice").body
            service.process.kill()
    content = (tmp_path / "answers.snapshot").read_bytes()
    assert one.encode() not in content
    assert hashlib.sha256(one.encode()).hexdigest().encode() not in content


def test_reload_opens_another_source_that_a_file_names(tmp_path: Path, sources: Sources) -> None:
    file = tmp_path / "secret"
    one, two = sources.secrets
    file.write_text(one)
    with served(tmp_path, sources, "${file:secret}") as service:
        assert answers(service) == ("Free", 404)
        file.write_text(two)
        assert ask_admin(service, "/reload", {}).status == 200
        assert answers(service) == ("Pro", 200)


def test_rotated_password_keeps_the_answers_and_closes_the_connections(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    with closing(create_database(postgres_server, "rotated")) as database:
        database.write(ALICE)
        sources = Sources("kind: postgres, dsn: SECRET", ("", ""), lambda: stopped(database))
        dsn, config = database.dsn, tmp_path / "config.yaml"
        other = dsn.replace(PASSWORD, "another")
        with served(tmp_path, sources, dsn) as service:
            assert Client(service.port).by_input("@alice").status == 200
            before = database.connections()
            database.run(f"ALTER ROLE idv PASSWORD '{verifier('another')}'")
            try:
                config.write_text(config.read_text().replace(dsn, other))
                assert ask_admin(service, "/reload", {}).status == 200
            finally:
                database.run(f"ALTER ROLE idv PASSWORD '{verifier(PASSWORD)}'")
            assert Client(service.port).by_input("@alice").status == 200
            eventually(lambda: not set(before) & set(database.connections()))
            service.stop()
        with sources.down(), served(tmp_path, sources, dsn) as service:
            assert b"Free" in Client(service.port).by_input("@alice").body
            service.process.kill()


def test_shadow_of_another_source_is_opened_and_compared_from_the_beginning(
    tmp_path: Path, sources: Sources
) -> None:
    file, state = tmp_path / "secret", tmp_path / "shadow.db"
    one, two = sources.secrets
    file.write_text(one)
    shadow = sources.backend.replace("SECRET", "'${file:secret}'")
    settings = "{sample: 100%, rate: 100/second, state: shadow.db}"
    more = f"  - {{name: new, {shadow}, shadow: {settings}}}\ncache: {{ttl: 0s}}\n"

    def is_compared(expected: str) -> bool:
        assert Client(service.port).by_input("@alice").status == 200
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(state)) as database:
            return database.execute("SELECT DISTINCT result FROM totals").fetchall() == [
                (expected,)
            ]
        return False  # the file is not complete yet

    def scope() -> str:
        with closing(sqlite3.connect(state)) as database:
            ((text,),) = database.execute("SELECT scope FROM state")
        return str(text)

    with served(tmp_path, sources, one, more) as service:
        eventually(lambda: is_compared("match"))
        before = scope()
        file.write_text(two)
        assert ask_admin(service, "/reload", {}).status == 200
        eventually(lambda: is_compared("differs"))
        assert scope() != before
