"""The key store in PostgreSQL: its schema, faults and rights, and the service that reads it."""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from idv_postgres import connection as connection_module
from idv_postgres import key_database
from idv_postgres.key_store import PostgresKeyStore
from support.databases.key_stores import (
    CREATED,
    add,
    config_with,
    make_store,
    open_store,
    postgres_place,
    read,
    record,
)
from support.databases.postgres_server import PASSWORD, Database, hanging, stopped
from support.http.http_server import until
from support.http.repeated_requests import BODY, PATH
from support.http.tcp_relay import relaying
from support.processes.process import TIMEOUT, Invoke, eventually
from support.processes.reloads import config, reloadable
from support.processes.service import Client, serving, write_config
from tornado_idv.errors import InvalidKey, KeyStoreError, StartError
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import EMPTY
from tornado_idv.service.keys import StoreFollower

pytestmark = pytest.mark.slow

UNSUPPORTED = "no plugin supports this URL of a key store; supported: postgres://, postgresql://"
KEYS = (Path(__file__).parents[2] / "docs" / "guide" / "keys.md").read_text(encoding="utf-8")


@pytest.fixture
def place(database: Database) -> Iterator[PostgresKeyStore]:
    with closing(postgres_place(database)) as location:
        yield location


def revoke_elsewhere(place: PostgresKeyStore) -> None:
    """Revoke the key ``shop`` on a connection of its own."""
    with closing(PostgresKeyStore(place.setting)) as other, open_store(other) as store:
        store.revoke("shop", CREATED)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO keys VALUES ('new', 1, '', 'identify:url', NULL, NULL, NULL, NULL, '', false)",
        "UPDATE keys SET note = 'new'",
        "DELETE FROM keys WHERE id = 'bare'",
        "TRUNCATE keys CASCADE",
        "INSERT INTO tokens VALUES (sha256('new'), 'shop', 1)",
        "UPDATE tokens SET expires = 1",
        "DELETE FROM tokens",
        "TRUNCATE tokens",
    ],
)
@pytest.mark.parametrize("role", ["origin", "replica"])
def test_revision_differs_after_each_kind_of_statement(
    place: PostgresKeyStore, database: Database, statement: str, role: str
) -> None:
    """Whatever an operator does without our commands is effective."""
    make_store(place, "shop")
    database.run(
        "SET search_path = idv_keys; INSERT INTO keys "
        "SELECT 'bare', 1, '', 'identify:url', NULL, NULL, NULL, NULL, '', false, NULL"
    )
    with open_store(place) as store:
        before = store.revision()
        database.run(f"SET session_replication_role = {role}; {statement}")
        assert store.revision() != before
    database.run("RESET session_replication_role")


def test_all_reads_of_one_transaction_see_the_same_state(place: PostgresKeyStore) -> None:
    """Otherwise a token could be read without its key, which was removed meanwhile."""
    make_store(place, "shop")
    with (
        closing(PostgresKeyStore(place.setting)) as other,
        other.connected(busy_timeout=1.0, read_only=True) as connection,
        connection.reading(),
    ):
        tokens = list(connection.execute("SELECT id FROM tokens"))
        add(place, record("partner", "partner"))
        assert list(connection.execute("SELECT id FROM keys")) == tokens


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER changed ON idv_keys.tokens",
        "ALTER TABLE idv_keys.keys DISABLE TRIGGER changed",
    ],
)
def test_no_keys_are_read_during_a_restore(
    place: PostgresKeyStore, database: Database, change: str
) -> None:
    """It begins after the check, and may fill the tables of keys last."""
    make_store(place, "shop")
    with place.opened(busy_timeout=1.0) as store:
        known = store.api_keys(EMPTY)
        database.run(f"{change}; TRUNCATE idv_keys.keys, idv_keys.tokens")
        with pytest.raises(KeyStoreError, match="missing or disabled trigger"):
            store.api_keys(known)


def test_keys_restored_meanwhile_are_read(place: PostgresKeyStore, database: Database) -> None:
    make_store(place, "shop")
    database.run("CREATE TABLE backup AS TABLE idv_keys.tokens")

    def read() -> list[str]:
        with open_store(place) as store:
            return [each.id for each in store.api_keys(EMPTY).keys.values()]

    for change, end in (
        ("TRUNCATE idv_keys.tokens", "INSERT INTO idv_keys.tokens TABLE backup"),
        ("ALTER TABLE idv_keys.keys ALTER note TYPE varchar(9)", ""),  # older snapshots are empty
    ):
        database.run(f"BEGIN; {change}")
        with ThreadPoolExecutor() as thread:
            reading = thread.submit(read)
            eventually(lambda: bool(database.count_queries("wait_event_type = 'Lock'")))
            database.run(f"{end}; COMMIT")
            assert reading.result(TIMEOUT) == ["shop"]


def test_change_waits_for_another_one_whatever_the_isolation_is_by_default(
    place: PostgresKeyStore, database: Database
) -> None:
    make_store(place, "shop")
    setting = f'ALTER DATABASE "{database.name}" SET default_transaction_isolation'
    database.run(f"{setting} = 'repeatable read'")

    try:
        with ThreadPoolExecutor() as thread:
            with open_store(place) as store, store.transaction():
                revoking = thread.submit(revoke_elsewhere, place)
                eventually(lambda: bool(database.count_queries("wait_event_type = 'Lock'")))
                store.add([record("partner", "partner")])
            revoking.result(TIMEOUT)
    finally:
        database.run(f"{setting} TO DEFAULT")


def test_change_that_waits_too_long_is_refused(place: PostgresKeyStore, database: Database) -> None:
    make_store(place, "shop")
    with (
        closing(PostgresKeyStore(place.setting)) as other,
        other.connected(busy_timeout=1.0, read_only=False) as connection,
        connection.writing(),
        pytest.raises(KeyStoreError, match="locked by another process"),
        open_store(place, busy_timeout=0.01) as store,
    ):
        store.revoke("shop", CREATED)
    revoke_elsewhere(place)


Fault = Callable[[Database], AbstractContextManager[None]]


def changed(change: str, undo: str) -> Fault:
    @contextmanager
    def fail(database: Database) -> Iterator[None]:
        database.run(change)
        yield
        database.run(undo)

    return fail


FAULTS: dict[str, tuple[Fault, str]] = {
    "stopped": (stopped, r"the connection was lost|cannot be reached"),
    "hanging": (hanging, "the server did not respond in time"),
    "no tables": (
        changed("ALTER SCHEMA idv_keys RENAME TO gone", "ALTER SCHEMA gone RENAME TO idv_keys"),
        "the key store is gone; restore it",
    ),
    "no rights": (
        changed(
            "REVOKE ALL ON SCHEMA idv_keys FROM idv; ALTER SCHEMA idv_keys OWNER TO postgres",
            "ALTER SCHEMA idv_keys OWNER TO idv; GRANT ALL ON SCHEMA idv_keys TO idv",
        ),
        "lacks a permission",
    ),
    "two rows": (
        changed(
            "INSERT INTO idv_keys.store VALUES (1, 'restored')",
            "DELETE FROM idv_keys.store WHERE revision = 'restored'",
        ),
        "the key store is damaged",
    ),
    "newer": (
        changed("UPDATE idv_keys.store SET version = 99", "UPDATE idv_keys.store SET version = 1"),
        "the key store has schema version 99",
    ),
    "row-level security": (
        changed(
            "ALTER TABLE idv_keys.tokens ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
            "CREATE TABLE kept AS TABLE idv_keys.store;"
            "UPDATE idv_keys.store SET revision = 'other'",
            "ALTER TABLE idv_keys.tokens DISABLE ROW LEVEL SECURITY;"
            "UPDATE idv_keys.store SET revision = kept.revision FROM kept; DROP TABLE kept",
        ),
        "row-level security hides rows from it",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_last_good_keys_stay_in_force_while_the_store_fails(
    place: PostgresKeyStore,
    database: Database,
    fault: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure is logged once, and so is its end, after which changes are seen again."""
    caplog.set_level(logging.INFO)
    tokens = make_store(place, "shop")
    follower, ring = StoreFollower(place), KeyRing([], lambda: CREATED)
    follower.read()
    ring.replace(ring.merged(follower.snapshot.keys.values(), []))
    fail, reason = FAULTS[fault]
    with fail(database), monkeypatch.context() as patched:
        if fault == "hanging":
            for name in ("_TIMEOUT", "_CONNECT_TIMEOUT", "_PING_TIMEOUT"):
                patched.setattr(key_database, name, 0.2)
            patched.setattr(connection_module, "MIN_CONNECT_TIMEOUT", 0.2)
        for _ in range(3):
            follower.poll()
        (line,) = caplog.records
        assert line.levelno == logging.ERROR
        assert place.name in line.getMessage()
        assert PASSWORD not in line.getMessage()
        assert re.search(reason, follower.error or "")
        caplog.clear()
        ring.authenticate("bearer", tokens["shop"])
    follower.poll()
    (line,) = caplog.records
    assert line.getMessage() == f"{place.name}: the key store can be read again"
    revoke_elsewhere(place)
    follower.poll()
    ring.replace(ring.merged(follower.snapshot.keys.values(), []))
    with pytest.raises(InvalidKey):
        ring.authenticate("bearer", tokens["shop"])


async def test_kept_connection_on_which_nothing_is_answered_is_replaced_within_seconds(
    place: PostgresKeyStore, database: Database
) -> None:
    """As after a firewall forgot it; a key that was revoked meanwhile is refused."""
    await asyncio.to_thread(make_store, place, "shop")
    port = database.server.port
    async with relaying(port) as relay:
        dsn = place.setting.get_secret_value().replace(f":{port}/", f":{relay.port}/")
        relayed = PostgresKeyStore(SecretStr(dsn))
        follower = StoreFollower(relayed)
        await asyncio.to_thread(follower.read)
        await asyncio.to_thread(follower.poll)
        assert relay.accepted == 2, "one is kept, and one looked for another primary"
        relay.freeze()
        await asyncio.to_thread(revoke_elsewhere, place)
        async with asyncio.timeout(5):
            await asyncio.to_thread(follower.poll)
        assert follower.error is None
        assert [key.rejected for key in follower.snapshot.keys.values()] == ["revoked"]
        await asyncio.to_thread(relayed.close)
        await asyncio.to_thread(place.close)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("postgresql://idv:{}@127.0.0.1:1/keys", "127.0.0.1:1/keys: the server cannot be reached"),
        (
            "postgresql://id@v:{}@h/keys",
            "percent-encode special characters in the password (@ as %40",
        ),
        ("mysql://idv:{}@h/keys", UNSUPPORTED),
        ("file:///{}/keys.db", UNSUPPORTED),
    ],
    ids=["unreachable", "malformed", "unknown scheme", "path in a URL"],
)
def test_store_that_cannot_be_opened_stops_the_start_and_is_reported_by_check(
    tmp_path: Path, invoke: Invoke, setting: str, message: str
) -> None:
    text = config_with(setting.format(PASSWORD))
    with pytest.raises(StartError, match=re.escape(message)) as caught, serving(text, tmp_path):
        pass
    assert PASSWORD not in str(caught.value)
    checked = invoke("check", "-c", tmp_path / "config.yaml")
    listed = invoke("keys", "list", "-c", tmp_path / "config.yaml")
    assert (checked.exit_code, listed.exit_code) == (1, 1)
    for result in (checked, listed):
        assert message in result.stderr
        assert PASSWORD not in result.output


def test_commands_work_on_the_store(
    place: PostgresKeyStore, tmp_path: Path, invoke: Invoke
) -> None:
    config = write_config(tmp_path, config_with("${file:dsn}"))
    (tmp_path / "dsn").write_text(place.setting.get_secret_value())
    missing = invoke("keys", "issue", "shop", "-c", config)
    assert missing.exit_code == 1
    assert missing.stderr.startswith(f"{place.name}: there is no key store in this database")
    issued = invoke("keys", "issue", "shop", "--create", "-c", config)
    assert issued.stderr.startswith(f"Created the key store {place.name}.\n")
    assert invoke("keys", "show", "shop", "-c", config).exit_code == 0
    checked = invoke("check", "-c", config)
    assert (checked.exit_code, "key store      postgresql://…" in checked.stdout) == (0, True)
    assert PASSWORD not in checked.output


def test_hanging_host_delays_for_seconds(
    place: PostgresKeyStore, database: Database, tmp_path: Path, invoke: Invoke
) -> None:
    """It responds to nothing, and could be a second primary."""
    make_store(place, "shop")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{database.server.port}"
        hosts = f"127.0.0.1:{silent.getsockname()[1]},{host}"
        dsn = place.setting.get_secret_value().replace(host, hosts)
        (tmp_path / "config.yaml").write_text(config_with(f"'{dsn}'"))
        began = time.monotonic()
        assert invoke("keys", "revoke", "shop", "-c", tmp_path / "config.yaml").exit_code == 0
        assert time.monotonic() - began < 30


def test_service_changes_no_keys(
    place: PostgresKeyStore, database: Database, tmp_path: Path
) -> None:
    """With the roles and grants in docs/guide/keys.md. A change is in force within a second."""
    roles, grants = re.findall(r"```sql\n(.*?)```", KEYS, re.DOTALL)
    database.run(re.sub("'a[^']* long random text'", f"'{PASSWORD}'", roles))
    place.setting = SecretStr(database.server.dsn(database.name, "idv_keys_admin"))
    token = make_store(place, "shop")["shop"]
    database.run(grants)
    service_dsn = database.server.dsn(database.name, "idv_service")

    def status(client: Client) -> int:
        return client.post(PATH, BODY, {"Authorization": f"Bearer {token}"}).status

    with serving(config_with(service_dsn), tmp_path) as service:
        client, follower = Client(service.port), service.keys.store
        assert follower is not None
        assert status(client) == 200
        with pytest.raises(KeyStoreError, match="lacks a permission"):
            add(PostgresKeyStore(SecretStr(service_dsn)), record("mine", "mine"))
        with stopped(database):
            eventually(lambda: follower.error is not None)
            report = service.process_report().parts["key store"]
            assert report is not None
            assert report.error is not None
            assert status(client) == 200
        eventually(lambda: follower.error is None)
        place.close()
        with open_store(place) as store:
            store.revoke("shop", time.time())
        changed_at = time.monotonic()
        eventually(lambda: status(client) == 401)
        assert time.monotonic() - changed_at < 1.0
    assert read(place)["shop"].last_used is not None


async def test_connection_of_a_reload_that_is_aborted_is_closed(
    place: PostgresKeyStore, database: Database, tmp_path: Path
) -> None:
    await asyncio.to_thread(make_store, place, "shop")
    await asyncio.to_thread(place.close)
    async with reloadable(tmp_path, config()) as harness:
        text = config().replace("auth: {", f"auth: {{store: '{database.dsn}', ")
        harness.path.write_text(text)
        prepared = await harness.service.prepare(harness.load())
        assert len(database.connections()) == 1
        await prepared.abort()
        await until(lambda: not database.connections())
        assert (await harness.reload(text)).code is None
        assert len(database.connections()) == 1
        assert (await harness.reload(config())).code is None
        await until(lambda: not database.connections())
