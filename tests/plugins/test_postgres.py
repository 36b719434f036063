"""The PostgreSQL backend: conformance, its start, its dsn, and the tables it accepts."""

import asyncio
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

import idv_postgres
from idv_postgres.backend import PostgresBackend
from idv_postgres.options import NOT_INSTALLED
from support.databases.postgres_backends import backend_of, eventually, serving
from support.databases.postgres_server import ALICE, BOB, PASSWORD, USERS, Database, verifier
from support.fakes.outcomes import outcome
from support.http.http_server import until
from support.processes.process import Invoke
from support.processes.service import CONFIG
from tornado_idv import Broken, ByCard, ByNickname, StartError, Step, User, yaml_loader
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend

pytestmark = pytest.mark.slow

README = Path(idv_postgres.__file__).with_name("README.md").read_text(encoding="utf-8")
NOBODY_LISTENS = "postgresql://idv@127.0.0.1:1/x"


def conforming(database: Database, **options: Any) -> AnyBackend:
    return make_backend(PostgresBackend, Path(), dsn=database.dsn, timeout="5s", **options)


class TestConformance(BackendConformance):
    holds_duplicates = False

    @pytest.fixture
    def make_backend(self, database: Database) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            database.write(*users)
            return conforming(database)

        return make

    @pytest.fixture
    def failing_backend(self, tmp_path: Path) -> AnyBackend:
        return make_backend(PostgresBackend, tmp_path, dsn=NOBODY_LISTENS)


class TestConformanceOfAnOddTable(BackendConformance):
    """Names that need quotes, types and a collation that ignore case or blanks, no cache."""

    holds_duplicates = False

    table = """
    CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    DROP SCHEMA IF EXISTS "my ""schema" CASCADE;
    CREATE SCHEMA "my ""schema";
    GRANT USAGE ON SCHEMA "my ""schema" TO idv;
    CREATE TYPE plans AS ENUM ('Free', 'Pro Ünïcode', 'no');
    CREATE TABLE "my ""schema"."the users; --" (
        "select" citext PRIMARY KEY, "card'number" char(40) UNIQUE, "a b" plans,
        "u.""x" varchar COLLATE caseless
    );
    GRANT SELECT ON "my ""schema"."the users; --" TO idv;
    CREATE VIEW users AS SELECT "select", "card'number", "a b"::text AS p, "u.""x" AS url
      FROM "my ""schema"."the users; --";
    CREATE RULE r AS ON INSERT TO users DO INSTEAD INSERT INTO "my ""schema"."the users; --"
      VALUES (NEW."select", NEW."card'number", NEW.p::plans, NEW.url);
    CREATE RULE d AS ON DELETE TO users DO INSTEAD DELETE FROM "my ""schema"."the users; --";
    """

    @pytest.fixture
    def make_backend(self, database: Database) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            database.write(*users, table=self.table)
            return conforming(
                database,
                table='my "schema.the users; --',
                columns={
                    "nickname": "select",
                    "card_number": "card'number",
                    "plan": "a b",
                    "profile_url": 'u."x',
                },
                prepared_statements=False,
            )

        return make

    @pytest.fixture
    def failing_backend(self, database: Database) -> AnyBackend:
        database.clear()
        return conforming(database)


@pytest.fixture
def unimported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is imported again by the next backend."""
    for name in [name for name in sys.modules if name.startswith("idv_postgres.")]:
        if name.rpartition(".")[2] in {"database", "errors", "key_database", "store"}:
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(idv_postgres, name.rpartition(".")[2], raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "asyncpg"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("unimported")
def test_a_missing_library_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StartError, match=re.escape(NOT_INSTALLED)):
        make_backend(PostgresBackend, tmp_path, dsn=NOBODY_LISTENS)
    path = tmp_path / "config.yaml"
    config = CONFIG.replace("auth:", f"auth:\n  store: {NOBODY_LISTENS}")
    path.write_text(f"{config}  - {{name: a, kind: postgres, dsn: '{NOBODY_LISTENS}'}}\n")
    assert invoke("postgres", "init", "-c", path).exit_code == 0
    applied = invoke("postgres", "init", "--apply", "-c", path)
    assert applied.exit_code == 1
    assert applied.stderr == f"{NOT_INSTALLED}\n"
    for command in ("check", "users count --from a", "keys list"):
        assert NOT_INSTALLED in invoke(*command.split(), "-c", path).stderr


@pytest.mark.usefixtures("unimported")
def test_library_that_cannot_be_loaded_is_reported_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asyncpg.py").write_text("raise ImportError('built for another libc')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="another libc"):
        make_backend(PostgresBackend, tmp_path, dsn=NOBODY_LISTENS)


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "keywords": {"dsn": f"host=db.example password={PASSWORD}"},
    "three names": {"table": "a.b.c"},
    "table and query": {"table": "users", "by_card": "SELECT 1"},
    "columns and query": {"columns": {"plan": "tier"}, "by_card": "SELECT 1"},
    "pool": {"pool": {"min": "3", "max": "2"}},
    "notifications through a pooler": {"prepared_statements": "false", "notify": {}},
}


@pytest.mark.parametrize("options", list(BAD_OPTIONS.values()), ids=list(BAD_OPTIONS))
def test_invalid_options_are_rejected_without_the_password(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        make_backend(PostgresBackend, tmp_path, **{"dsn": NOBODY_LISTENS, **options})
    assert PASSWORD not in str(caught.value)


START_ERRORS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another column": (
        "CREATE TABLE users (nick text, card_number text, plan text);",
        {},
        (
            '"users" has no column "nickname" (did you mean "nick"?); '
            'there are: "nick", "card_number", "plan"'
        ),
    ),
    "domain over a number": (
        "CREATE DOMAIN d AS int; CREATE TABLE users (nickname text, card_number d, plan text);",
        {},
        'the column "card_number" has the type integer, not text; numbers lose leading zeros',
    ),
    "plan of JSON": (USERS.replace("plan text", "plan json"), {}, '"plan" has the type json'),
    "URL of JSON": (USERS.replace("url text", "url json"), {}, "has the type json, not text"),
    "no permission": (USERS + "REVOKE ALL ON users FROM idv;", {}, "; GRANT SELECT on it"),
    "row-level security": (
        USERS + "ALTER TABLE users ENABLE ROW LEVEL SECURITY;",
        {},
        "has row-level security, ALTER ROLE … BYPASSRLS (SQLSTATE 42501): query would be affected",
    ),
    "view that casts a value, which the text of the error has": (
        (
            "CREATE TABLE people (nickname text, card_number text, plan text);"
            "INSERT INTO people VALUES ('a', '4000-1234', '');"
            "CREATE VIEW users AS SELECT * FROM people WHERE card_number::bigint > 0"
        ),
        {},
        "the query failed with InvalidTextRepresentationError (SQLSTATE 22P02)",
    ),
    "query that is no SQL": ("", {"by_card": "SELEKT $1"}, 'syntax error at or near "SELEKT"'),
    "query for a number": (
        "CREATE TABLE users (id int);",
        {"by_card": "SELECT * FROM users WHERE id = $1"},
        "by_card: must have one parameter, $1, of type text; write $1::text",
    ),
    "no card": ("", {"by_nickname": "SELECT $1 nickname, 1 plan"}, "by_nickname: must return the"),
    "number": ("", {"by_card": "SELECT $1 nickname, 1 card_number, 1 plan"}, "card_number is int4"),
}


@pytest.mark.parametrize(
    ("script", "options", "message"), list(START_ERRORS.values()), ids=list(START_ERRORS)
)
async def test_a_database_that_does_not_fit_stops_the_start(
    database: Database, script: str, options: dict[str, Any], message: str
) -> None:
    database.clear(script)
    with pytest.raises(StartError) as caught:
        await backend_of(database, **options).open()
    assert str(caught.value).startswith("backend tested: ")
    assert message in str(caught.value)
    assert "4000" not in str(caught.value)
    await until(lambda: not database.connections())


async def test_a_dsn_that_is_refused_stops_the_start_and_is_not_shown(database: Database) -> None:
    backend = backend_of(database, dsn=database.dsn.replace("/test_postgres", "/nowhere"))
    with pytest.raises(StartError, match="the database of the dsn does not exist") as caught:
        await backend.open()
    for text in (str(caught.value), repr(backend.options), repr(vars(backend))):
        assert PASSWORD not in text


VIEW = """CREATE TABLE people (nick text UNIQUE, card text UNIQUE, plan text);
CREATE VIEW users AS SELECT nick AS nickname, card AS card_number, plan FROM people;"""
WARNINGS: dict[str, tuple[str, list[str]]] = {
    "usual table": (USERS, []),
    "no index": (
        "CREATE TABLE users (nickname text, card_number text, plan text);",
        [
            "a lookup by nickname or card number reads the whole table; an index is missing",
            'CREATE UNIQUE INDEX "users_nickname" ON "users" ("nickname")',
            'CREATE UNIQUE INDEX "users_card_number" ON "users" ("card_number")',
        ],
    ),
    "other indexes": (
        """CREATE TABLE users (nickname text PRIMARY KEY, card_number text, plan text);
        CREATE INDEX plain ON users (card_number);
        CREATE UNIQUE INDEX pair ON users (card_number, plan);
        CREATE UNIQUE INDEX part ON users (card_number) WHERE plan = 'Free';
        CREATE UNIQUE INDEX expression ON users (upper(card_number));
        CREATE UNIQUE INDEX bad ON users (card_number);
        UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'bad'::regclass;""",
        ['CREATE UNIQUE INDEX "users_card_number" ON "users" ("card_number")'],
    ),
    "index that is read as a whole": (
        """CREATE TABLE users (nickname text, card_number text, plan text);
        CREATE UNIQUE INDEX covering ON users (nickname) INCLUDE (card_number, plan);""",
        ["a lookup by card number reads the whole table", "CREATE UNIQUE INDEX"],
    ),
    "partitions": (
        """CREATE TABLE users (nickname text PRIMARY KEY, card_number varchar(32), plan text)
        PARTITION BY HASH (nickname);
        CREATE TABLE one PARTITION OF users FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE two PARTITION OF users FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        CREATE INDEX ON users (card_number);""",
        [],  # PostgreSQL rejects a unique index without the partition key
    ),
    "view": (VIEW, []),
    "view without an index": (
        VIEW.replace("card text UNIQUE", "card text"),
        ["a lookup by card number reads the whole table"],
    ),
}


@pytest.mark.parametrize(("script", "warnings"), list(WARNINGS.values()), ids=list(WARNINGS))
async def test_the_start_warns_of_slow_lookups_and_missing_unique_indexes(
    database: Database, caplog: pytest.LogCaptureFixture, script: str, warnings: list[str]
) -> None:
    database.clear(script)
    async with serving(database) as backend:
        queries = [*map(ByNickname, ["alice", "bob", "carol"]), *map(ByCard, ["1", "2", "3"])]
        assert set(await asyncio.gather(*map(backend.find, queries))) == {None}
        # Lookups that read the whole table do not wait for each other.
        slow = " ".join(each for each in warnings if "reads the whole table" in each)
        fast = [each for each in ("nickname", "card number") if each not in slow]
        assert database.count_queries("query LIKE '%unnest%'") == len(fast)
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(logged) == len(warnings)
    for warning in warnings:
        assert any(warning in line for line in logged)


async def test_statement_and_rows_are_explained(database: Database) -> None:
    database.write(ALICE, User("", "77", "carol"))
    steps: list[Step] = []
    async with serving(database) as backend:
        await backend.explain(ByNickname("alice"), steps)
        statement, *others = steps
        condition = """(u."nickname" = $1::text OR u."nickname" = ('@' || $1::text))"""
        assert statement.result.endswith(f"{condition} LIMIT 2")
        row = Step("row", ["Free", "4000123412341234", "alice", None])
        assert others == [Step("parameter", "alice"), Step("rows", 1), row]
        with pytest.raises(Broken):
            await backend.explain(ByNickname("carol"), steps)
    assert steps[-1] == Step("row", ["", "77", "carol", None])


async def test_a_user_whose_nickname_is_stored_with_an_at_sign_is_broken_and_not_unknown(
    database: Database,
) -> None:
    """Alone, in a batch and beside a user without it. The other users are served."""
    database.write(ALICE, User("Pro", "78", "@alice"))
    async with serving(database) as backend:
        database.run("INSERT INTO users VALUES ('@carol', '777', 'Free')")
        lookups = [outcome(backend, ByNickname(each)) for each in ("carol", "alice", "dave")]
        broken, *others = await asyncio.gather(*lookups)
        assert broken == "broken: the nickname of a row is stored with a leading @"
        assert others == ["found", "not found"]
        assert await outcome(backend, ByNickname("carol")) == broken
        assert await outcome(backend, ByCard("777")) == broken


async def test_only_the_queries_that_are_configured_are_served(database: Database) -> None:
    """With any order of columns, an expression, a semicolon or a comment."""
    database.write(ALICE, BOB)
    by_nickname = "SELECT * FROM users WHERE nickname = $1; "
    by_card = (
        "WITH a AS (SELECT * FROM users) SELECT plan, nickname, card_number, profile_url FROM a "
        "WHERE card_number = $1 OR $1 = 'both' -- by card"
    )
    async with serving(database, by_nickname=by_nickname) as backend:
        assert backend.serves == {ByNickname}
        names = ["alice", "bob", "Alice"]
        assert [await backend.find(ByNickname(each)) for each in names] == [ALICE, BOB, None]
    async with serving(database, by_nickname=by_nickname, by_card=by_card) as backend:
        assert backend.serves == {ByNickname, ByCard}
        cards = [ALICE.card_number, BOB.card_number, "0"]
        assert [await backend.find(ByCard(each)) for each in cards] == [ALICE, BOB, None]
        assert await outcome(backend, ByCard("both")) == "broken: two rows answer one query"


FOLDED = {
    "text": ("nickname text, card_number text UNIQUE", "(lower(nickname))"),
    "citext": ("nickname citext, card_number text UNIQUE", "(nickname)"),
    "Turkish": (
        'nickname text COLLATE "tr-x-icu", card_number text UNIQUE',
        '(lower(nickname COLLATE "C"))',
    ),
}


@pytest.mark.parametrize(("columns", "index"), list(FOLDED.values()), ids=list(FOLDED))
async def test_folded_nicknames_are_found_by_an_index(
    database: Database, caplog: pytest.LogCaptureFixture, columns: str, index: str
) -> None:
    """ASCII letters only: the Kelvin sign is no k, and in Turkish I is still i."""
    database.clear(
        f"CREATE TABLE users ({columns}, plan text);"
        f"CREATE UNIQUE INDEX ON users {index};"
        "INSERT INTO users VALUES ('ALI.Ce', '1', 'Free'), ('bob', '2', 'Pro'),"
        " (U&'\\212Aim', '3', 'Free')"
    )
    async with serving(database, "fold") as backend:
        for names in (["ali.ce"], ["bob", "ali.ce", "ali.c", "kim"]):
            lookups = (backend.find(ByNickname(name)) for name in names)
            found = dict(zip(names, await asyncio.gather(*lookups), strict=True))
            assert (found["ali.ce"].nickname, found["ali.ce"].card_number) == ("ALI.Ce", "1")
            assert found.get("ali.c") is found.get("kim") is None
        assert database.count_queries("query LIKE '%unnest%'") == 1
    assert caplog.text == ""


async def test_a_folded_lookup_without_its_index_is_reported_with_the_statement(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The statement makes the warning go away."""
    database.write(ALICE, BOB)
    async with serving(database, "fold"):
        scan, unique = (each.getMessage() for each in caplog.records)
    assert "a lookup by nickname reads the whole table" in scan
    database.run(unique.partition("create one: ")[2])
    caplog.clear()
    async with serving(database, "fold"):
        assert caplog.text == ""


async def test_a_password_that_is_changed_in_its_file_is_used_for_new_connections(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.files.FileSecret.check_interval", 0.0)
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.1)
    database.write(ALICE)
    secret = yaml_loader.FileText(database.dsn)
    secret.path = tmp_path / "dsn"
    secret.path.write_text(database.dsn)
    async with serving(database, dsn=secret) as backend:
        database.run("ALTER ROLE idv PASSWORD 'another'")
        try:
            database.disconnect()
            await eventually(backend, "broken: the password in the dsn is wrong")
            for other in ("mysql://canary", database.dsn.replace(database.name, "postgres")):
                secret.path.write_text(other.replace(PASSWORD, "another"))
                assert "the password in the dsn is wrong" in await outcome(backend)
            secret.path.write_text(database.dsn.replace(PASSWORD, "another"))
            await eventually(backend, "found")
        finally:
            database.run(f"ALTER ROLE idv PASSWORD '{verifier(PASSWORD)}'")


async def test_tls_is_verified_as_the_dsn_says(database: Database, tmp_path: Path) -> None:
    database.write(ALICE)
    authority, server = trustme.CA(), database.server
    leaf = authority.issue_cert("127.0.0.1")
    server.install_certificate(leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes())
    for name, each in {"right.pem": authority, "wrong.pem": trustme.CA()}.items():
        each.cert_pem.write_to_path(str(tmp_path / name))
    plain = database.dsn.partition("?")[0]
    right = f"{plain}?sslmode=verify-full&sslrootcert={tmp_path}/right.pem"
    for dsn, expected in {
        right: "found",
        f"{plain}?sslmode=require": "found",
        right.replace("right", "wrong"): (
            "unavailable: the TLS handshake failed; see sslmode and sslrootcert of the dsn"
        ),
    }.items():
        async with serving(database, dsn=dsn) as backend:
            assert await outcome(backend) == expected
    server.run("ALTER SYSTEM RESET ssl")
    server.run("SELECT pg_reload_conf()")


async def test_table_and_role_of_the_readme_find_its_user(database: Database) -> None:
    table, rights = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
    database.clear()
    database.run(table)
    rights = rights.replace("a long random text", PASSWORD)
    database.run(re.sub(r"\bidv\b", "idv_of_readme", rights))
    dsn = database.server.dsn(database.name, "idv_of_readme")
    async with serving(database, dsn=dsn) as backend:
        assert await backend.find(ByNickname("alice")) == ALICE
        assert await backend.find(ByCard("4000123412341234")) == ALICE
    database.clear()
