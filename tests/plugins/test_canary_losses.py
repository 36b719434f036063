"""What a source loses without an error is no "not found" of a backend with a canary.

Each loss is made in a real source, which then says of a user who exists that it does not know him.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from idv_postgres.backend import PostgresBackend
from idv_redis.backend import RedisBackend
from idv_sqlite.backend import SqliteBackend
from support.databases import sqlite_databases
from support.databases.ldap_server import (
    OPTIONS,
    PEOPLE,
    SUFFIX,
    LdapServer,
    person,
)
from support.databases.ldap_server import require as require_ldap
from support.databases.postgres_server import Database
from support.databases.redis_server import RedisServer
from tornado_idv import BackendResult, ByCard, ByNickname, LookupFailed, Query, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import make_backend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import open_backends

pytestmark = pytest.mark.slow

ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Free", "0012345670", "bob")
BIRD = User("Free", "9000000000000001", "idv-canary")
USERS = (ALICE, BOB, BIRD)
CANARY = {"nickname": "@idv-canary", "card_number": BIRD.card_number, "max_age": "0s"}
CARDS = (ByCard(ALICE.card_number),)
BOTH: tuple[Query, ...] = (ByNickname("alice"), *CARDS)
ABSENT: dict[type[Query], Query] = {ByNickname: ByNickname("nobody"), ByCard: ByCard("4999")}


async def ask(guard: Guard, query: Query) -> str:
    deadline = asyncio.get_running_loop().time() + 10
    try:
        answer = await guard.find(query, deadline)
    except LookupFailed as error:
        return error.reason
    return "not found" if answer is None or not answer.found else "found"


async def check(
    backend: AnyBackend, lose: Callable[[], object], lost: tuple[Query, ...] = BOTH
) -> None:
    """Lose users; the backend says that it does not know those ``lost``, and its guard does not."""
    async with open_backends([backend]):
        guard = Guard(backend, lambda _: True)
        for query in BOTH:
            assert await ask(guard, query) == "found"
            assert await ask(guard, ABSENT[type(query)]) == "not found"
        await asyncio.to_thread(lose)
        for query in lost:
            await lies(backend, query)
            for each in (query, ABSENT[type(query)]):
                end = await ask(guard, each)
                assert end.startswith("canary @idv-canary"), end
                assert end.endswith(' is not found: its "not found" is not trusted'), end
        for query in {*BOTH} - {*lost}:
            assert await ask(guard, ABSENT[type(query)]) == "not found"


async def lies(backend: AnyBackend, query: Query) -> None:
    """Wait until the backend itself, once it has connected again, knows no such user."""
    async with asyncio.timeout(5):
        while True:
            with suppress(LookupFailed):
                found = await backend.find(query)
                if (found.user if isinstance(found, BackendResult) else found) is None:
                    return
            await asyncio.sleep(0.02)


# LDAP. That a filter finds no user at all is noticed without a canary: bob stays.

READER = {"dn": f"cn=idv,{SUFFIX}", "password": "x"}
ACCOUNT = f"dn: cn=idv,{SUFFIX}\nobjectClass: person\ncn: idv\nsn: idv\nuserPassword: x\n\n"
OTHERS = f'dn.one="{PEOPLE}" filter=(!(uid=bob))'


async def test_ldap_that_hides_entries(tmp_path: Path) -> None:
    require_ldap()
    from idv_ldap.backend import LdapBackend  # noqa: PLC0415 - python-ldap may be missing

    people = [person(each.nickname, each.card_number, "title: Free") for each in USERS]
    with LdapServer(tmp_path / "server", [ACCOUNT, *people]) as server:

        def hide() -> None:
            server.stop()
            with server.config.open("a") as file:
                file.write(f"access to {OTHERS} by * none\naccess to * by * read\n")
            server.start()

        options = {**OPTIONS, "uris": [server.uri], "bind": READER, "canary": CANARY}
        await check(make_backend(LdapBackend, tmp_path, **options), hide)


# PostgreSQL. Row-level security is an error.


@pytest.mark.parametrize(
    ("script", "lost"),
    [
        ("TRUNCATE users", BOTH),
        ("UPDATE users SET card_number = '7' || card_number", CARDS),
    ],
    ids=["TRUNCATE", "cards alone"],
)
async def test_postgres(
    database: Database, tmp_path: Path, script: str, lost: tuple[Query, ...]
) -> None:
    database.write(*USERS)
    options = {"dsn": database.dsn, "timeout": "5s", "canary": CANARY}
    backend = make_backend(PostgresBackend, tmp_path, **options)
    await check(backend, lambda: database.run(script), lost)


# Redis


@pytest.mark.parametrize(
    ("commands", "lost"),
    [
        ([("FLUSHALL",), ("SET", "ready", "1")], BOTH),  # else that is a failure already
        ([("DEL", f"card:{each.card_number}") for each in USERS], CARDS),
    ],
    ids=["FLUSHALL", "cards alone"],
)
async def test_redis(
    server: RedisServer, tmp_path: Path, commands: Any, lost: tuple[Query, ...]
) -> None:
    server.write(*USERS)
    backend = make_backend(RedisBackend, tmp_path, url=server.url, timeout="5s", canary=CANARY)
    await check(backend, lambda: [server.run(*each) for each in commands], lost)


# A file


async def test_sqlite_file_without_rows(tmp_path: Path) -> None:
    path = sqlite_databases.write(tmp_path / "users.db", *USERS)
    backend = make_backend(SqliteBackend, tmp_path, path=path.name, canary=CANARY)

    def replace() -> None:
        sqlite_databases.write(tmp_path / "new.db").rename(path)

    await check(backend, replace)
