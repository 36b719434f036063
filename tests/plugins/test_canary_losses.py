"""What a source loses without an error is no "not found" of a backend with a canary.

Each loss is made in a real source, which then says of a user who exists that it does not know him.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from idv_postgres.backend import PostgresBackend
from idv_redis.backend import RedisBackend
from idv_sqlite.backend import SqliteBackend
from idv_upstream.backend import UpstreamBackend
from support.databases import sqlite_databases
from support.databases.ldap_server import (
    ADMIN,
    INDEX,
    OPTIONS,
    PASSWORD,
    PEOPLE,
    SUFFIX,
    LdapServer,
    person,
)
from support.databases.ldap_server import require as require_ldap
from support.databases.postgres_server import Database
from support.databases.redis_server import RedisServer
from support.http.scripted_server import a_request, http
from tornado_idv import BackendResult, ByCard, ByNickname, LookupFailed, Query, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import make_backend
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import opened_backend

pytestmark = pytest.mark.slow

ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Free", "0012345670", "bob")
BIRD = User("Free", "9000000000000001", "idv-canary")
CARL = User("Free", "9000000000000002", "carl")
USERS = (ALICE, BOB, BIRD)
CANARY = {"nickname": "@idv-canary", "card_number": BIRD.card_number, "max_age": "0s"}
NAMES, CARDS = (ByNickname("alice"),), (ByCard(ALICE.card_number),)
BOTH: tuple[Query, ...] = (*NAMES, *CARDS)
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
    async with opened_backend(backend):
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


async def untrusted(guard: Guard, query: Query) -> str:
    """Wait until no answer is trusted, once the backend has connected again; return the reason."""
    async with asyncio.timeout(5):
        while True:
            end = await ask(guard, query)
            if end.endswith("not trusted"):
                return end
            await asyncio.sleep(0.02)


# LDAP. That a filter finds no user at all is noticed without a canary: bob stays.

READER = {"dn": f"cn=idv,{SUFFIX}", "password": "x"}
ACCOUNT = f"dn: cn=idv,{SUFFIX}\nobjectClass: person\ncn: idv\nsn: idv\nuserPassword: x\n\n"
OLD = f"dn: ou=old,{SUFFIX}\nobjectClass: organizationalUnit\nou: old\n\n"
OTHERS = f'dn.one="{PEOPLE}" filter=(!(uid=bob))'


@pytest.fixture(scope="module")
def ldap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LdapServer]:
    require_ldap()
    index = INDEX.replace("uid,", "uid,employeeType,")
    server = LdapServer(tmp_path_factory.mktemp("ldap") / "server", [ACCOUNT], index)
    yield server
    server.stop()


def _replace_ldap(server: LdapServer, *users: User, kind: str = "active", access: str = "") -> None:
    """Start the server again with these users; bob is active in any case."""
    server.stop()
    head, _, _ = server.config.read_text().partition("access to ")
    server.config.write_text(f"{head}{access}access to * by * read\n")
    kinds = {each: "active" if each is BOB else kind for each in users} | {CARL: "disabled"}
    people = [
        person(each.nickname, each.card_number, "title: Free", f"employeeType: {kinds[each]}")
        for each in users
    ]
    server.load([ACCOUNT, OLD, *people])
    server.start()


def _move_ldap(server: LdapServer) -> None:
    import ldap  # noqa: PLC0415 - not where only other engines are tested

    connection = ldap.initialize(server.uri)
    connection.simple_bind_s(ADMIN, PASSWORD)
    for each in (ALICE, BIRD):
        name = f"uid={each.nickname}"
        connection.rename_s(f"{name},{PEOPLE}", name, f"ou=old,{SUFFIX}")
    connection.unbind_s()


@pytest.mark.parametrize(
    "lose",
    [
        lambda ldap: _replace_ldap(ldap, *USERS, access=f"access to {OTHERS} by * none\n"),
        lambda ldap: _replace_ldap(ldap, *USERS, kind="Active-2"),
        _move_ldap,
        lambda ldap: _replace_ldap(ldap, BOB),
    ],
    ids=["rights", "filter", "base_dn", "empty replica"],
)
async def test_ldap(ldap: LdapServer, tmp_path: Path, lose: Any) -> None:
    from idv_ldap.backend import LdapBackend  # noqa: PLC0415 - python-ldap may be missing

    _replace_ldap(ldap, *USERS)
    options = {
        **OPTIONS,
        "uris": [ldap.uri],
        "bind": READER,
        "by_nickname": {"filter": "(&(employeeType=active)(uid={nickname}))"},
        "by_card": {"filter": "(&(employeeType=active)(employeeNumber={card_number}))"},
        "canary": CANARY,
    }
    await check(make_backend(LdapBackend, tmp_path, **options), lambda: lose(ldap))


@pytest.mark.parametrize(
    ("hidden", "canary", "wrong"),
    [
        ("employeeType", {"absent": "@carl"}, "canary @carl (absent) is found"),
        ("title", {"plan": "Free"}, "canary @idv-canary does not have the plan Free"),
    ],
)
async def test_ldap_that_hides_what_a_condition_reads(
    ldap: LdapServer, tmp_path: Path, hidden: str, canary: dict[str, str], wrong: str
) -> None:
    """The backend finds a disabled user, or gives everybody the default plan."""
    from idv_ldap.backend import LdapBackend  # noqa: PLC0415 - python-ldap may be missing

    _replace_ldap(ldap, *USERS, CARL)
    options = {
        **OPTIONS,
        "uris": [ldap.uri],
        "bind": READER,
        "response": {
            **OPTIONS["response"],
            "plan": {"path": "title", "default": "Basic"},
            "not_known_when": "employeeType == 'disabled'",
        },
        "canary": {"nickname": "@idv-canary", "max_age": "0s", **canary},
    }
    backend = make_backend(LdapBackend, tmp_path, **options)
    alice, carl = ByNickname("alice"), ByNickname("carl")
    async with opened_backend(backend):
        guard = Guard(backend, lambda _: True)
        assert [await ask(guard, each) for each in (alice, carl)] == ["found", "not found"]
        access = f"access to attrs={hidden} by * none\n"
        await asyncio.to_thread(_replace_ldap, ldap, *USERS, CARL, access=access)
        for each in (alice, carl):
            assert await untrusted(guard, each) == f"{wrong}: its answers are not trusted"


# PostgreSQL. Row-level security is an error, unless a function has a setting of its own.

VIEW = """
GRANT USAGE ON SCHEMA public TO public;
DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DROP SCHEMA IF EXISTS other CASCADE;
CREATE SCHEMA other; CREATE TABLE other.users (LIKE users);
GRANT USAGE ON SCHEMA other TO public; GRANT SELECT ON ALL TABLES IN SCHEMA other TO public;
GRANT SELECT ON users TO reader;
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS all_rows ON users; CREATE POLICY all_rows ON users TO reader USING (true);
CREATE OR REPLACE FUNCTION list() RETURNS SETOF users STABLE LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = public SET row_security = on
  AS 'BEGIN RETURN QUERY SELECT * FROM users; END';
ALTER FUNCTION list() OWNER TO reader;
DROP VIEW IF EXISTS listed; CREATE VIEW listed AS SELECT * FROM list();
GRANT SELECT ON listed TO idv;
"""
OTHER_CARDS = "UPDATE users SET card_number = '7' || card_number"


@pytest.mark.parametrize(
    ("table", "script", "lost"),
    [
        ("listed", "DROP POLICY all_rows ON users", BOTH),
        ("listed", "ALTER FUNCTION list() SET search_path = other", BOTH),
        ("users", "TRUNCATE users", BOTH),
        ("users", OTHER_CARDS, CARDS),
    ],
    ids=["row-level security", "search_path", "TRUNCATE", "cards alone"],
)
async def test_postgres(
    database: Database, tmp_path: Path, table: str, script: str, lost: tuple[Query, ...]
) -> None:
    database.write(*USERS)
    database.run("ALTER TABLE users DISABLE ROW LEVEL SECURITY" if table == "users" else VIEW)
    options = {"dsn": database.dsn, "table": table, "timeout": "5s"}
    backend = make_backend(PostgresBackend, tmp_path, **options, canary=CANARY)
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


# A file, and a directory with an HTTP API


async def test_sqlite_file_without_rows(tmp_path: Path) -> None:
    path = sqlite_databases.write(tmp_path / "users.db", *USERS)
    backend = make_backend(SqliteBackend, tmp_path, path=path.name, canary=CANARY)

    def replace() -> None:
        sqlite_databases.write(tmp_path / "new.db").rename(path)

    await check(backend, replace)


@pytest.mark.parametrize(
    ("hides", "lost"),
    [("", BOTH), ("card", CARDS), ("login", NAMES)],
    ids=["all", "cards", "names"],
)
async def test_upstream_that_hides_users_of_a_role(
    tmp_path: Path, hides: str, lost: tuple[Query, ...]
) -> None:
    """It responds 200 with an empty list."""
    hidden: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                target = (await a_request(reader)).split()[1].decode()
                field, _, value = target.partition("?")[2].partition("=")
                records = [
                    {"login": each.nickname, "card": each.card_number, "plan": each.plan}
                    for each in USERS
                    if not any(field.startswith(name) for name in hidden)
                ]
                found = [each for each in records if each[field] == value]
                writer.write(http(200, json.dumps(found).encode()))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1")
    port = listener.sockets[0].getsockname()[1]
    backend = make_backend(
        UpstreamBackend,
        tmp_path,
        base_url=f"http://127.0.0.1:{port}",
        by_nickname={"url": "/users", "query": {"login": "{nickname}"}},
        by_card={"url": "/users", "query": {"card": "{card_number}"}},
        response={"select": "@", "nickname": "login", "card_number": "card", "plan": "plan"},
        canary=CANARY,
    )
    await check(backend, lambda: hidden.append(hides), lost)
    listener.close()
