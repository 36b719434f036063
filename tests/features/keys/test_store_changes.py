"""The changes of commands in each kind of key store: a SQLite file, and PostgreSQL.

A COMMIT in PostgreSQL that ends with an error is uncertain.
"""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from threading import Barrier

import pytest
from click.testing import Result
from msgspec.structs import replace

from idv_postgres import key_database
from idv_postgres.key_store import PostgresKeyStore
from idv_sqlite.key_store import SqliteKeyStore
from support.databases.key_stores import CREATED, add, make_store, open_store, read, record
from support.databases.postgres_server import Database
from support.processes.process import Invoke
from tornado_idv.errors import KeyStoreError
from tornado_idv.features.keys.editor import Token
from tornado_idv.keys.store import EMPTY, KeyStoreLocation
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


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, path: Path) -> KeyStoreLocation:
    """A place for a key store, where there is none."""
    if request.param == "file":
        return SqliteKeyStore(path)
    location: KeyStoreLocation = request.getfixturevalue("in_postgres")
    return location


def test_rotating_never_makes_an_older_token_valid_for_longer(place: KeyStoreLocation) -> None:
    make_store(place)
    add(place, record("shop", "a", expires=CREATED + 120))
    tokens = [Token(digest(name), CREATED + 100) for name in ("b", "c")]
    with open_store(place) as store:
        store.rotate("shop", tokens[0], overlap=1e6, expires=CREATED + 1e9)
        store.rotate("shop", tokens[1], overlap=1e3, expires=None)
        shop = store.find("shop")
    expires = {token.digest: token.expires for token in shop.tokens}
    assert expires == {digest("a"): CREATED + 120, digest("b"): CREATED + 1100, digest("c"): None}
    assert shop.expires == CREATED + 1e9


def test_tokens_that_expired_long_ago_are_removed_at_the_next_rotation(
    place: KeyStoreLocation,
) -> None:
    """Tokens of other keys stay."""
    make_store(place, "shop", "other")
    with open_store(place) as store:
        for key_id in ("shop", "other"):
            store.rotate(key_id, Token(digest(f"{key_id} 1"), CREATED), overlap=10, expires=None)
        before = read(place)
        kept = Token(digest("2"), CREATED + 10 + 30 * 86400)
        store.rotate("shop", kept, overlap=10, expires=None)
        assert len(store.find("shop").tokens) == 3
        latest = Token(digest("3"), CREATED + 11 + 30 * 86400)
        rotated = store.rotate("shop", latest, overlap=10, expires=None)
        digests = [each.digest for each in store.find("shop").tokens]
        assert digests == [digest("shop 1"), kept.digest, latest.digest]
        assert store.find("shop") == rotated[1]
        assert store.find("other") == before["other"]


def test_revoked_key_stays_revoked_and_listed(place: KeyStoreLocation) -> None:
    make_store(place, "shop", "Shop")
    with open_store(place) as store:
        known = store.find("shop")
        revoked = replace(known, revoked=CREATED + 1)
        assert store.revoke("shop", CREATED + 1) == (known, revoked)
        assert store.revoke("shop", CREATED + 2) == (revoked, revoked)
        assert store.find("shop") == revoked
        assert store.find("Shop").revoked is None  # ids are case-sensitive


def test_keys_are_added_all_or_none(place: KeyStoreLocation) -> None:
    tokens = make_store(place, "shop")
    for wrong, message in [
        (record("shop", "x"), "the key shop exists already"),
        (record("other", tokens["shop"]), "another key has the token of other"),
    ]:
        with open_store(place) as store:
            with pytest.raises(KeyStoreError, match=message):
                store.add([record("new", "new"), wrong])
            store.set_disabled("shop", disabled=True)  # committed
    assert [(each.id, each.disabled) for each in read(place).values()] == [("shop", True)]


def test_last_use_never_goes_back(place: KeyStoreLocation) -> None:
    make_store(place, "shop", "partner")
    with open_store(place) as store:
        store.write_last_used({"shop": 200.0, "unknown": 300.0})
        store.write_last_used({"shop": 100.0})
        assert [each.last_used for each in store.records()] == [None, 200.0]


def test_changes_at_once_wait_for_each_other(place: KeyStoreLocation) -> None:
    """None fails, and none is lost, though each reads the key before it writes it."""
    make_store(place, "shop")

    def rotate(first: int) -> None:
        with closing(type(place)(place.setting)) as own:
            for i in range(first, first + 5):
                with open_store(own) as store:
                    token = Token(digest(str(i)), CREATED + i)
                    store.rotate("shop", token, overlap=1e6, expires=None)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(rotate, range(0, 20, 5)))
    assert len(read(place)["shop"].tokens) == 21


def test_store_is_created_once_by_commands_at_once(place: KeyStoreLocation) -> None:
    together = Barrier(4)

    def create_own(_: int) -> bool:
        with closing(type(place)(place.setting)) as own:
            together.wait(10)
            return own.create()

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(create_own, range(4))) == [False, False, False, True]
    assert read(place) == {}


def test_revision_differs_after_each_change_of_a_key_only(place: KeyStoreLocation) -> None:
    """Also after one by SQL; the last use is no change."""
    make_store(place, "shop")
    with open_store(place) as store:
        first = store.revision()
        store.write_last_used({"shop": 1.0})
        before, after = store.set_disabled("shop", disabled=False)
        assert before == after
        assert store.revision() == first
        store.set_disabled("shop", disabled=True)
        second = store.revision()
    with place.connected(busy_timeout=1.0, read_only=False) as database, database.writing():
        database.execute("UPDATE keys SET disabled = false")
    with open_store(place) as store:
        assert len({first, second, store.revision()}) == 3


ADD = "INSERT INTO tokens SELECT ?, '{}', created, NULL FROM keys WHERE id = 'other'"
CHANGES = {
    "a token is replaced by another one": (
        "DELETE FROM tokens WHERE id = 'shop'",
        ADD.format("shop"),
    ),
    "a token is another one": ("UPDATE tokens SET digest = ? WHERE id = 'shop'",),
    "a token is added": (ADD.format("shop"),),
    "a second token is that of another key": (
        "UPDATE tokens SET id = 'shop' WHERE id = 'more'",
        "DELETE FROM keys WHERE id = 'more'",
    ),
    "a token expires": ("UPDATE tokens SET expires = 1 WHERE id = 'shop'",),
    "a key is replaced by another one": (
        "DELETE FROM tokens WHERE id = 'shop'",
        "DELETE FROM keys WHERE id = 'shop'",
        (
            "INSERT INTO keys SELECT 'new', created, owner, scopes, not_before, expires, requests,"
            " misses, note, disabled, revoked FROM keys WHERE id = 'other'"
        ),
        ADD.format("new"),
    ),
    "a limit": ("UPDATE keys SET requests = '5/second', misses = '1/minute' WHERE id = 'shop'",),
}
# SQLite does not require the key of a token.
IN_FILE = ("UPDATE keys SET id = 'new' WHERE id = 'shop'", ADD.format("new"))
OF_PLACES = [*product(("file", "postgres"), CHANGES.values()), ("file", IN_FILE)]


@pytest.mark.parametrize(("place", "statements"), OF_PLACES, indirect=["place"])
def test_what_is_read_after_a_change_is_what_a_first_read_gives(
    place: KeyStoreLocation, statements: tuple[str, ...]
) -> None:
    """Also if one is removed and one added between two reads; other keys are the same objects."""
    make_store(place, "other", "shop", "more")
    with open_store(place) as store:
        before = store.api_keys(EMPTY)
    with place.connected(busy_timeout=1.0, read_only=False) as database, database.writing():
        for statement in statements:
            database.execute(statement, [digest("new")] * statement.count("?"))
    with open_store(place) as store:
        after = store.api_keys(before)
        assert after.keys == store.api_keys(EMPTY).keys
    assert after.keys != before.keys
    other = {each.id: each for each in before.keys.values()}["other"]
    assert next(each for each in after.keys.values() if each.id == "other") is other


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
