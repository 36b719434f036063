"""``tornado-idv users`` with a PostgreSQL server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from asyncpg.transaction import Transaction
from click.testing import Result

from support.databases.postgres_server import ALICE, BOB, USERS, Database
from support.databases.user_lists import ANY_LIST, HEADER, csv_row
from support.processes.process import Invoke
from tornado_idv import User

pytestmark = pytest.mark.slow

ALICE_ROW, BOB_ROW = csv_row(ALICE), csv_row(BOB)
GRANT = "GRANT ALL ON users TO idv"


@pytest.fixture(autouse=True)
def nothing_is_left(database: Database) -> None:
    """Tests add constraints, triggers and grants to the table."""
    database.clear()


@pytest.fixture
def users(database: Database, invoke: Invoke, tmp_path: Path) -> Callable[..., Result]:
    def run(
        name: str, *arguments: object, more: str = "", fold: bool = False, settings: str = ""
    ) -> Result:
        config = tmp_path / "config.yaml"
        config.write_text(
            "profile_sites: [https://profiles.example]\n"
            f"identifiers: {{nickname_case: {'fold' if fold else 'preserve'}}}\n"
            f"backends: [{{name: people, kind: postgres, dsn: '{database.dsn}{settings}'{more}}},\n"
            "  {name: file, kind: sqlite, path: people.db}]\n"
        )
        options = ANY_LIST if name == "import" else ()
        return invoke("users", name, *options, *arguments, "--config", config)

    return run


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "list.csv"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what is done when all rows are read, while the transaction of the import is idle."""

    def do(action: Callable[[], object]) -> None:
        monkeypatch.setattr(
            "tornado_idv.cli.users.import_users.RejectedRows.check", lambda *_: action() and None
        )

    return do


def rows(database: Database) -> list[str]:
    return database.run("SELECT * FROM users ORDER BY 1").splitlines()


def test_import_replaces_all_users_and_export_writes_them_again(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path], tmp_path: Path
) -> None:
    database.write(User("Old", "9", "old"), User("Old", BOB.card_number, "alice"))
    database.run(GRANT)
    csv = source(f"{HEADER}{ALICE_ROW}{BOB_ROW}x y,1,Free,\nalice,2,Free,\ncarl,0012345670,Free,\n")
    done = users("import", csv, "--to", "people", "--json", more=", notify: {}")
    numbers = {"imported": 2, "added": 1, "updated": 1, "removed": 1, "rejected": 3}
    assert json.loads(done.stdout) == {"ok": True, **numbers}
    assert rows(database) == [
        f"alice|{ALICE.card_number}|Free|",
        f"bob|{BOB.card_number}|Pro|{BOB.profile_url}",
    ]
    assert Path(f"{csv}.rejected").read_text().splitlines()[1:] == [
        f"{csv}:5: the nickname is that of an earlier line",
        f"{csv}:6: the card number is that of an earlier line",
    ]
    assert users("count", "--from", "people").stdout == "2\n"
    assert users("export", "--from", "people").stdout == HEADER + ALICE_ROW + BOB_ROW
    assert users("import", source(HEADER + ALICE_ROW + BOB_ROW), "--to", "file").exit_code == 0
    assert users("compare", "people", "file").exit_code == 0
    assert users("compare", "file", "people", "--sample", 2).exit_code == 0
    query = "SELECT plan, card_number, nickname, profile_url FROM users WHERE nickname = $1"
    only = f', by_nickname: "{query}"'
    assert users("compare", "file", "people", "--sample", 2, more=only).exit_code == 0


TABLES = {
    "unique": "CREATE TABLE users (nickname text UNIQUE, card_number text UNIQUE, plan text)",
    "no index": "CREATE TABLE users (nickname text, card_number text, plan text)",
    "deferred": "CREATE TABLE users (nickname text UNIQUE DEFERRABLE INITIALLY DEFERRED,"
    " card_number text UNIQUE DEFERRABLE INITIALLY DEFERRED, plan text)",
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_duplicates_in_any_batch_are_rejected(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    """Rows of the first batches are in the empty table when the first duplicate comes."""
    database.clear(f"{table}; {GRANT}")
    pairs = ["alice,1", "bob,2", "alice,3", "carl,2", "carl,4", "dora,3", "emil,5"]
    csv = source("nickname,card_number,plan\n" + "".join(f"{pair},Free\n" for pair in pairs))
    assert users("import", csv, "--to", "people").exit_code == 0
    assert rows(database) == ["alice|1|Free", "bob|2|Free", "dora|3|Free", "emil|5|Free"]
    assert Path(f"{csv}.rejected").read_text().splitlines() == [
        f"{csv}:4: the nickname is that of an earlier line",
        f"{csv}:5: the card number is that of an earlier line",
        f"{csv}:6: the nickname is that of an earlier line",
    ]


def test_merge_keeps_other_users_and_other_columns(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    """Two users exchange their card numbers; a card number of a third one is not taken."""
    database.clear(
        "CREATE TYPE plans AS ENUM ('Free', 'Pro');"
        "CREATE TABLE users (nickname varchar UNIQUE, card_number char(20) UNIQUE, plan plans,"
        " since text DEFAULT 'now');"
        "INSERT INTO users VALUES ('Alice', '1', 'Free', 'then'), ('bob', '2', 'Free', 'then'),"
        " ('carl', '3', 'Free', 'then'), ('dora', '4', 'Free', 'then');" + GRANT
    )
    csv = source(
        "nickname,card_number,plan\nalice,2,Free\nbob,1,Pro\nemil,3,Free\ndora,4,Pro\nfay,6,Free\n"
    )
    assert users("import", csv, "--to", "people", "--merge", fold=True).exit_code == 0
    found = database.run("SELECT nickname, trim(card_number), plan, since FROM users ORDER BY 1")
    assert found.splitlines() == [
        "alice|2|Free|now",
        "bob|1|Pro|now",
        "carl|3|Free|then",
        "dora|4|Pro|then",
        "fay|6|Free|now",
    ]
    assert ":4: the card number is that of a stored user" in Path(f"{csv}.rejected").read_text()


def test_refused_import_changes_nothing(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    database.write(BOB)
    csv = source(HEADER + ALICE_ROW)
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, "GRANT SELECT, INSERT" in done.stderr) == (3, True)
    database.run(GRANT)
    done = users("import", csv, "--to", "people", settings="&default_transaction_read_only=on")
    assert (done.exit_code, "default_transaction_read_only is on" in done.stderr) == (3, True)
    done = users("import", source(HEADER + ALICE_ROW + ALICE_ROW), "--to", "people", "--strict")
    assert (done.exit_code, "nothing was changed" in done.stderr) == (1, True)
    database.run("ALTER TABLE users ADD CONSTRAINT paid CHECK (plan <> 'Free')")
    done = users("import", csv, "--to", "people")
    assert (done.exit_code, "they violate the constraint paid" in done.stderr) == (3, True)
    assert ALICE.nickname not in done.stderr
    database.run("ALTER TABLE users ENABLE ROW LEVEL SECURITY")
    for arguments in (["import", csv, "--to"], ["count", "--from"], ["export", "--from"]):
        done = users(*arguments, "people")
        assert (done.exit_code, "for row-level security, ALTER ROLE" in done.stderr) == (3, True)
    database.run("ALTER TABLE users DISABLE ROW LEVEL SECURITY")
    assert [row.partition("|")[0] for row in rows(database)] == ["bob"]
    database.run("DELETE FROM users")
    done = users("import", source(HEADER + BOB_ROW + ALICE_ROW), "--to", "people")
    assert (done.exit_code, "they violate the constraint paid" in done.stderr) == (3, True)
    assert rows(database) == []
    queries = ", by_card: 'SELECT 1'"
    done = users("count", "--from", "people", more=queries)
    assert (done.exit_code, "find single users" in done.stderr) == (3, True)


def test_import_that_the_server_refuses_at_the_commit_is_not_uncertain(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    database.clear(
        f"{USERS} {GRANT}; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE check_violation USING CONSTRAINT = 'paid'; END $$;"
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON users DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    said = "people: the table refuses the users: they violate the constraint paid\n"
    assert (done.exit_code, done.stderr) == (3, said)
    assert rows(database) == []


def test_import_notifies_services_by_the_connection_for_notifications(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    """The other one may lead to a pooler; here it wants TLS, which the server does not have."""
    database.clear(USERS + GRANT)
    database.run("LISTEN idv_users")
    more = f", notify: {{dsn: '{database.dsn}', channel: idv_users}}"
    csv = source(HEADER + ALICE_ROW)
    done = users("import", csv, "--to", "people", more=more, settings="&sslmode=require")
    assert done.exit_code == 0, done.stderr
    assert 'notification "idv_users" with payload "*"' in database.run("UNLISTEN idv_users")


def test_difference_that_a_column_ignores_is_a_change(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    database.clear(
        "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2',"
        " deterministic = false);"
        "CREATE TABLE users (nickname text COLLATE caseless, card_number text COLLATE caseless,"
        f" plan text COLLATE caseless); {GRANT}; INSERT INTO users VALUES ('alice', '1', 'FREE')"
    )
    csv = source("nickname,card_number,plan\nalice,1,Free\nBob,2,Pro\n")
    done = users("import", csv, "--to", "people", "--json")
    assert json.loads(done.stdout)["updated"] == 1
    assert rows(database) == ["alice|1|Free", "Bob|2|Pro"]


def test_commit_without_confirmation_is_not_reported_as_no_change(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    """The connection ends meanwhile."""
    database.clear(
        f"{USERS} {GRANT}; "
        "CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9); RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON users DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION end_session()"
    )
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert done.exit_code == 3
    assert "whether the users were changed could not be determined" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_after_the_commit_does_not_hide_that_the_users_are_changed(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    database.write(BOB)
    database.run(GRANT)

    timeouts: list[float] = []

    async def close(_: object, *, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's
        timeouts.append(timeout)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)

    monkeypatch.setattr("asyncpg.Connection.close", close)
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert (done.exit_code, done.stderr.partition(":")[0]) == (0, "Imported 1 user into people")
    assert timeouts
    assert max(timeouts) <= 1
    assert [row.partition("|")[0] for row in rows(database)] == ["alice"]


def test_import_refused_while_a_batch_is_inserted_prints_only_why(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.write()
    database.run(
        f"{GRANT}; CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';"
        "CREATE TRIGGER wait BEFORE INSERT ON users EXECUTE FUNCTION wait();"
    )
    lines = "".join(f"user{number},{number},Free,\n" for number in range(999))
    done = users("import", source(f"{HEADER}{lines}x y,1,Free,\n"), "--to", "people", "--strict")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert rows(database) == []


@pytest.mark.parametrize("stored", [[BOB], []], ids=["replaced", "empty"])
def test_terminated_import_changes_nothing(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    meanwhile: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    stored: list[User],
) -> None:
    """SIGTERM comes while rows are copied; until then lookups find the users of before."""
    database.write(*stored)
    database.run(GRANT)
    seen: list[str] = []

    def terminate() -> None:
        seen.extend(rows(database))
        os.kill(os.getpid(), signal.SIGTERM)

    meanwhile(terminate)
    done = users("import", source(f"{HEADER}{ALICE_ROW}carl,1,Free,\n"), "--to", "people")
    assert (done.exit_code, done.stderr) == (128 + signal.SIGTERM, "")
    nicknames = [user.nickname for user in stored]
    assert [row.partition("|")[0] for row in seen] == nicknames
    assert [row.partition("|")[0] for row in rows(database)] == nicknames


def test_pause_between_rows_is_no_reason_to_end_the_session(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    meanwhile: Callable[..., None],
) -> None:
    database.write(BOB)
    database.run(GRANT)
    meanwhile(lambda: database.run("SELECT pg_sleep(0.4)"))
    names = "('idle_in_transaction_session_timeout', 'transaction_timeout')"
    known = database.run(f"SELECT name FROM pg_settings WHERE name IN {names}").splitlines()
    settings = "".join(f"&{name}=250ms" for name in known)
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people", settings=settings)
    assert done.exit_code == 0, done.stderr
    assert [row.partition("|")[0] for row in rows(database)] == ["alice"]


@pytest.mark.parametrize("stored", [[BOB], []], ids=["replaced", "empty"])
def test_session_that_is_closed_while_rows_are_read_is_reported(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    meanwhile: Callable[..., None],
    stored: list[User],
) -> None:
    database.write(*stored)
    database.run(GRANT)
    meanwhile(database.disconnect)
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert done.exit_code == 3
    assert done.stderr.startswith("people: the connection was lost")
    assert done.stderr.count("\n") == 1
    assert len(rows(database)) == len(stored)


@pytest.mark.parametrize(
    ("at_commit", "message"),
    [(False, "the server does not respond"), (True, "whether the users were changed could not")],
    ids=["copy", "commit"],
)
def test_frozen_server_ends_the_import(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    meanwhile: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_commit: bool,
    message: str,
) -> None:
    monkeypatch.setattr("idv_postgres.store._CHECK_INTERVAL", 0.05)
    monkeypatch.setattr("idv_postgres.store._CONNECT_TIMEOUT", 0.5)
    monkeypatch.setattr("idv_postgres.database._MIN_CONNECT_TIMEOUT", 0.5)
    database.write(BOB)
    database.run(GRANT)
    freeze, commit = database.server.pause, Transaction.commit

    async def freeze_and_commit(transaction: Transaction) -> None:
        freeze()
        await commit(transaction)

    if at_commit:
        monkeypatch.setattr("asyncpg.transaction.Transaction.commit", freeze_and_commit)
    else:
        meanwhile(freeze)
    try:
        done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    finally:
        database.server.resume()
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert message in done.stderr


@pytest.mark.parametrize("limit", [-1, 1], ids=["connections left", "no connection left"])
def test_slow_statement_does_not_end_the_import(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    monkeypatch.setattr("idv_postgres.store._CHECK_INTERVAL", 0.05)
    database.clear(
        f"{USERS} {GRANT}; ALTER ROLE idv CONNECTION LIMIT {limit};"
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2);"
        "RETURN NULL; END $$; CREATE TRIGGER wait BEFORE INSERT ON users EXECUTE FUNCTION wait()"
    )
    try:
        done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    finally:
        database.run("ALTER ROLE idv CONNECTION LIMIT -1")
    assert (done.exit_code, done.stderr.partition(":")[0]) == (0, "Imported 1 user into people")


def test_locked_table_is_reported(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idv_postgres.store._SETTINGS", "SET LOCAL lock_timeout = '20ms'")
    database.write(BOB)
    database.run(GRANT)
    database.run("BEGIN; LOCK TABLE users IN ROW EXCLUSIVE MODE")
    try:
        done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    finally:
        database.run("ROLLBACK")
    assert (done.exit_code, "locked by another transaction" in done.stderr) == (3, True)


def test_cancelled_statement_ends_the_import(
    database: Database, users: Callable[..., Result], source: Callable[[str], Path]
) -> None:
    """Also where the same statement would not be cancelled again."""
    database.clear(
        f"{USERS} {GRANT}; CREATE SEQUENCE calls; GRANT ALL ON SEQUENCE calls TO idv;"
        "CREATE FUNCTION cancel_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('calls') = 1 THEN RAISE query_canceled; END IF; RETURN NULL; END $$;"
        "CREATE TRIGGER cancel BEFORE INSERT ON users EXECUTE FUNCTION cancel_once()"
    )
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people")
    assert (done.exit_code, "stopped by the server" in done.stderr) == (3, True)
    assert rows(database) == []


@pytest.mark.parametrize("stored", [[BOB], []], ids=["replaced", "empty"])
def test_users_that_another_writer_adds_are_replaced_with_any_default_isolation(
    database: Database,
    users: Callable[..., Result],
    source: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    stored: list[User],
) -> None:
    """They are committed just before the table is locked."""
    database.write(*stored)
    database.run(GRANT)
    added = ["INSERT INTO users VALUES ('carl', '3', 'Free')"]

    def lock(_: object) -> str:
        if added:
            database.run(added.pop())
        return "LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE"

    monkeypatch.setattr("idv_postgres.staging.ImportSql.lock", property(lock))
    settings = "&default_transaction_isolation=repeatable%20read"
    done = users("import", source(HEADER + ALICE_ROW), "--to", "people", settings=settings)
    assert done.exit_code == 0, done.stderr
    assert [row.partition("|")[0] for row in rows(database)] == ["alice"]
