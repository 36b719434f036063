"""A COMMIT in the key store in PostgreSQL that ends with an error is uncertain."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from idv_postgres import key_database
from idv_postgres.key_store import PostgresKeyStore
from support.databases.key_stores import CREATED, make_store, open_store, read
from support.databases.postgres_server import Database
from support.processes.process import Invoke
from tornado_idv.errors import KeyStoreError
from tornado_idv.keys.token import check_token, digest

pytestmark = pytest.mark.slow

ENDS_SESSION = """
SET search_path = idv_keys;
CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT OR UPDATE ON keys
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION end_session();
"""


@pytest.fixture
def keys(in_postgres: PostgresKeyStore, tmp_path: Path, invoke: Invoke) -> Callable[..., Result]:
    config = tmp_path / "config.yaml"
    config.write_text(f"auth: {{store: '{in_postgres.setting.get_secret_value()}'}}\n")
    return lambda *arguments: invoke("keys", *arguments, "--config", config)


def test_token_that_may_be_valid_is_printed_with_an_exit_code_of_its_own(
    in_postgres: PostgresKeyStore,
    database: Database,
    keys: Callable[..., Result],
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_store(in_postgres, "shop")
    database.run(ENDS_SESSION)
    issued, rotated = keys("issue", "other"), keys("rotate", "shop", "--json")
    check_token(issued.stdout.strip())
    record = json.loads(rotated.stdout)
    check_token(record["token"])
    assert record["id"] == "shop"
    for result in (issued, rotated):
        assert "the printed token may be valid" in result.stderr
    for result in (issued, rotated, keys("revoke", "shop")):
        assert result.exit_code == 3
        assert "whether the change was committed could not be determined" in result.output
    logged = capfd.readouterr().err
    lines = [json.loads(each) for each in logged.splitlines()]
    assert [(each["command"], each["key"]) for each in lines] == [
        ("keys issue: uncertain", "other"),
        ("keys rotate: uncertain", "shop"),
        ("keys revoke: uncertain", "shop"),
    ]
    for token in (issued.stdout.strip(), record["token"]):
        assert token not in logged + issued.stderr + rotated.stderr
        assert digest(token).hex() not in logged


def end_sessions(database: Database) -> None:
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'tornado-idv keys'"
    )


def test_error_within_a_change_is_raised_also_if_that_cannot_be_rolled_back(
    in_postgres: PostgresKeyStore, database: Database
) -> None:
    make_store(in_postgres, "shop")

    def change_and_fail() -> None:
        with open_store(in_postgres) as store, store.transaction():
            store.revoke("shop", CREATED)
            end_sessions(database)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert read(in_postgres)["shop"].revoked is None


def test_change_is_uncertain_where_a_signal_comes_and_the_connection_is_lost(
    in_postgres: PostgresKeyStore,
    database: Database,
    keys: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_store(in_postgres, "shop")

    def cut_off() -> None:
        signal.raise_signal(signal.SIGTERM)
        end_sessions(database)
        raise KeyStoreError("the connection was lost")

    def run(database: key_database.KeyDatabase, sql: str) -> None:
        if sql == "COMMIT":
            signal.raise_signal(signal.SIGINT)
        script(database, sql)
        if sql == "COMMIT":
            cut_off()

    script = key_database.KeyDatabase.script
    monkeypatch.setattr(key_database.KeyDatabase, "script", run)
    result = keys("revoke", "shop")
    assert (result.exit_code, "could not be determined" in result.stderr) == (3, True)
    monkeypatch.undo()
    assert read(in_postgres)["shop"].revoked is not None
