"""The PostgreSQL backend while its database stops, hangs, is full, or is changed under it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import trustme

from idv_postgres import database as database_module
from idv_postgres.backend import PostgresBackend
from support.databases.postgres_server import (
    ALICE,
    BOB,
    PASSWORD,
    USERS,
    Database,
    hanging,
    stopped,
    verifier,
)
from support.fakes.outcomes import outcome
from support.http.http_server import until
from support.http.tcp_relay import relaying
from support.processes.process import eventually
from support.processes.service import CONFIG, Client, serving
from tornado_idv import ByCard, ByNickname, Unavailable, yaml_loader
from tornado_idv.registry import open_backends
from tornado_idv.testing import make_backend

pytestmark = pytest.mark.slow

RECOVERY = 5.0
"""Seconds after which a database that is there again must be used."""
SLOW = "SELECT u.* FROM users AS u, pg_sleep(10) WHERE nickname = $1"


@pytest.fixture(autouse=True)
def running(database: Database) -> Iterator[None]:
    """Each test begins with this table and without a session; the server runs after it, too."""
    database.write(ALICE, BOB)
    database.disconnect()
    yield
    if database.server.process is None:
        database.server.start()


@pytest.fixture
def backend_of(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PostgresBackend]:
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.1)

    def make(**options: Any) -> PostgresBackend:
        backend = make_backend(PostgresBackend, tmp_path, **{"dsn": database.dsn, **options})
        assert isinstance(backend, PostgresBackend)
        return backend

    return make


async def wait_for(backend: PostgresBackend, beginning: str) -> None:
    """Repeat a lookup until it ends so."""
    async with asyncio.timeout(RECOVERY):
        while True:
            if (await outcome(backend)).startswith(beginning):
                return
            await asyncio.sleep(0.02)


async def recovered(backend: PostgresBackend) -> set[str]:
    """Repeat a lookup until it finds the user; return how the others ended."""
    ended: set[str] = set()
    async with asyncio.timeout(RECOVERY):
        while (last := await outcome(backend)) != "found":
            ended.add(last)
            await asyncio.sleep(0.02)
    assert "not found" not in ended
    return ended


async def test_a_database_that_is_down_at_the_start_is_used_when_it_is_there(
    database: Database, backend_of: Callable[..., PostgresBackend], caplog: pytest.LogCaptureFixture
) -> None:
    """Until then lookups fail at once, and do not count for the circuit breaker."""
    database.server.stop()
    backend = backend_of()
    async with open_backends([backend]):
        with pytest.raises(Unavailable, match="cannot be reached: Connect") as caught:
            await backend.find(ByNickname("alice"))
        assert not caught.value.counts_against_breaker
        await asyncio.to_thread(database.server.start)
        await recovered(backend)
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert logged[0].startswith("backend tested: the server cannot be reached: ")


async def test_a_password_that_is_changed_in_its_file_is_used_for_new_connections(
    database: Database,
    backend_of: Callable[..., PostgresBackend],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be used is reported without what it says."""
    monkeypatch.setattr("tornado_idv.files.FileSecret.check_interval", 0.0)
    secret = yaml_loader.FileText(database.dsn)
    secret.path = tmp_path / "dsn"
    secret.path.write_text(database.dsn)
    backend = backend_of(dsn=secret)
    async with open_backends([backend]):
        database.run("ALTER ROLE idv PASSWORD 'another'")
        try:
            database.disconnect()
            await wait_for(backend, "broken: the password in the dsn is wrong")
            secret.path.write_text("mysql://canary")
            await wait_for(backend, "broken: the dsn cannot be used: not a connection URI")
            secret.path.write_text(database.dsn.replace(PASSWORD, "another"))
            await recovered(backend)
        finally:
            database.run(f"ALTER ROLE idv PASSWORD '{verifier(PASSWORD)}'")


@pytest.mark.parametrize("how", ["frozen", "cut"])
async def test_dead_connections_are_replaced_before_each_has_cost_a_failure(
    database: Database, backend_of: Callable[..., PostgresBackend], how: str
) -> None:
    """New connections work, as behind a firewall that has forgotten the old ones."""
    async with relaying(database.server.port) as relay:
        dsn = database.dsn.replace(str(database.server.port), str(relay.port))
        backend = backend_of(dsn=dsn, timeout="800ms", pool={"min": "4", "max": "4"})
        async with open_backends([backend]):
            assert await outcome(backend) == "found"
            if how == "frozen":
                relay.freeze()
            else:
                relay.cut()
            failures = 0
            async with asyncio.timeout(RECOVERY):
                while await outcome(backend) != "found":
                    failures += 1
            assert failures < 4
            ended = await asyncio.gather(*(outcome(backend) for _ in range(12)))
            assert set(ended) == {"found"}
            relay.freeze()


@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_a_slow_query_is_stopped_by_the_server_and_leaves_no_trace(
    database: Database,
    backend_of: Callable[..., PostgresBackend],
    prepared: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection goes on, and the server is probed."""
    monkeypatch.setattr(database_module, "_SERVER_SHARE", 0.05)  # on a busy machine
    backend = backend_of(
        by_nickname=SLOW,
        by_card="SELECT * FROM users WHERE card_number = $1",
        timeout="3s",
        prepared_statements=prepared,
        pool={"max": "1"},
    )
    probed = asyncio.Event()
    backend.on_available(lambda _: probed.set())
    async with open_backends([backend]):
        before = database.connections()
        reason = "the query took too long and was stopped by the server (SQLSTATE 57014)"
        assert await outcome(backend) == f"unavailable: {reason}"
        await asyncio.wait_for(probed.wait(), 10)
        assert await outcome(backend, ByCard(ALICE.card_number)) == "found"
        # The session of the probe ends a moment after its connection was closed.
        await until(lambda: database.connections() == before)


async def test_too_many_connections_are_unavailable_and_those_that_are_open_go_on(
    database: Database, backend_of: Callable[..., PostgresBackend]
) -> None:
    """The reason is that of the server that is full, not that of another host which is down."""
    host = f"127.0.0.1:{database.server.port}"
    dsn = database.dsn.replace(host, f"{host},127.0.0.1:1")
    database.run("ALTER ROLE idv CONNECTION LIMIT 2")
    try:
        # Lookups in a table would share a query, and need no more connections.
        backend = backend_of(
            dsn=dsn,
            by_nickname="SELECT * FROM users WHERE nickname = $1",
            timeout="8s",
            pool={"min": "2", "max": "6"},
        )
        async with open_backends([backend]):
            ended = await asyncio.gather(*(outcome(backend) for _ in range(12)))
            assert "found" in ended
            failed = set(ended) - {"found"}
            assert len(failed) == 1
            assert "the server has no connection left; lower pool.max" in failed.pop()
            assert await outcome(backend) == "found"
            database.run("ALTER ROLE idv CONNECTION LIMIT -1")
            ended = await asyncio.gather(*(outcome(backend) for _ in range(12)))
            assert set(ended) == {"found"}
            assert len(database.connections()) == 6
    finally:
        database.run("ALTER ROLE idv CONNECTION LIMIT -1")


PERMISSION = (
    "broken: the user of the dsn may not read the table, or some of its rows: GRANT SELECT on it, "
    "or, for row-level security, ALTER ROLE … BYPASSRLS (SQLSTATE 42501)"
)
SCHEMA_FAULTS = {
    "dropped": (
        "DROP TABLE users",
        "broken: the table is missing (SQLSTATE 42P01)",
        f"{USERS} GRANT SELECT ON users TO idv",
    ),
    "renamed column": (
        "ALTER TABLE users RENAME nickname TO nick",
        "broken: a column is missing (SQLSTATE 42703)",
        "ALTER TABLE users RENAME nick TO nickname",
    ),
    "numbers": (
        "ALTER TABLE users ALTER card_number TYPE bigint USING card_number::bigint",
        "broken: a column has another type than text (SQLSTATE 42804)",
        "ALTER TABLE users ALTER card_number TYPE text",
    ),
    "permission": (
        "REVOKE ALL ON users FROM idv",
        PERMISSION,
        "GRANT SELECT ON users TO idv",
    ),
    "row-level security": (
        (
            "ALTER TABLE users ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY others ON users USING (nickname <> 'alice')"
        ),
        PERMISSION,
        "ALTER TABLE users DISABLE ROW LEVEL SECURITY; DROP POLICY others ON users",
    ),
}


@pytest.mark.parametrize(
    ("fault", "expected", "repair"), list(SCHEMA_FAULTS.values()), ids=list(SCHEMA_FAULTS)
)
async def test_a_table_that_is_changed_under_the_service_is_broken_until_it_is_repaired(
    database: Database,
    backend_of: Callable[..., PostgresBackend],
    fault: str,
    expected: str,
    repair: str,
) -> None:
    backend = backend_of()
    async with open_backends([backend]):
        await outcome(backend)
        database.run(fault)
        try:
            assert await outcome(backend) == expected
            if "type" in expected:
                assert await outcome(backend, ByCard("77")) == expected
        finally:
            database.run(repair)
        database.run(
            f"INSERT INTO users VALUES ('alice', '{ALICE.card_number}', 'Free') "
            "ON CONFLICT DO NOTHING"
        )
        assert await outcome(backend) == "found"
    database.clear()


@pytest.mark.parametrize("prepared", ["true", "false"])
async def test_a_user_is_found_while_the_table_is_filled_again(
    database: Database, backend_of: Callable[..., PostgresBackend], prepared: str
) -> None:
    """By a snapshot from after the TRUNCATE, whatever the isolation is by default."""
    isolation = f'ALTER DATABASE "{database.name}" SET default_transaction_isolation'
    database.run(f"{isolation} = 'repeatable read'")
    try:
        backend = backend_of(prepared_statements=prepared)
        async with open_backends([backend]):
            database.run("BEGIN; TRUNCATE users")
            lookup = asyncio.create_task(outcome(backend))
            await until(lambda: database.count_queries("wait_event_type = 'Lock'"))
            card = ALICE.card_number
            database.run(f"INSERT INTO users VALUES ('alice', '{card}', 'Free'); COMMIT")
            assert await lookup == "found"
    finally:
        database.run(f"{isolation} TO DEFAULT")


async def test_a_value_that_is_not_valid_utf8_is_broken(
    database: Database, backend_of: Callable[..., PostgresBackend]
) -> None:
    server = database.server
    server.run(
        "CREATE DATABASE raw TEMPLATE template0 ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    raw = Database(server, "raw")
    raw.write(ALICE)
    raw.run(r"UPDATE users SET plan = E'\xff'")
    backend = backend_of(dsn=raw.dsn)
    async with open_backends([backend]):
        assert await outcome(backend) == (
            "broken: a value in the table is not valid UTF-8 (SQLSTATE 22021)"
        )


async def test_a_host_that_hangs_or_is_down_is_passed_over(
    database: Database, backend_of: Callable[..., PostgresBackend]
) -> None:
    """The one that responded is tried first from then on."""
    port = database.server.port
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hosts = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{port}"
        dsn = database.dsn.replace(f"127.0.0.1:{port}", hosts)
        backend = backend_of(dsn=dsn, pool={"min": "1", "max": "4"})
        async with open_backends([backend]):
            started = time.monotonic()
            ended = await asyncio.gather(*(outcome(backend) for _ in range(8)))
            assert set(ended) == {"found"}
            assert time.monotonic() - started < backend.options.timeout


@pytest.mark.parametrize(
    ("role", "reason"),
    [
        (
            "standby",
            "each host is a standby, or has another role than target_session_attrs asks for",
        ),
        ("read-write", None),
    ],
)
async def test_the_role_of_the_host_is_respected(
    database: Database, backend_of: Callable[..., PostgresBackend], role: str, reason: str | None
) -> None:
    backend = backend_of(dsn=f"{database.dsn}&target_session_attrs={role}")
    async with open_backends([backend]):
        expected = "found" if reason is None else f"unavailable: {reason}"
        assert await outcome(backend) == expected


async def test_tls_is_verified_as_the_dsn_says(
    database: Database, backend_of: Callable[..., PostgresBackend], tmp_path: Path
) -> None:
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
        backend = backend_of(dsn=dsn)
        async with open_backends([backend]):
            assert await outcome(backend) == expected


def test_an_import_into_a_frozen_server_is_ended_by_a_signal_and_changes_nothing(
    database: Database, backend_of: Callable[..., PostgresBackend]
) -> None:
    """It waits while the buffers in between are full."""
    database.run("GRANT ALL ON users TO idv")
    before = database.run("SELECT * FROM users ORDER BY 1")
    interrupt = Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    def rows() -> Iterator[tuple[str, str, str]]:
        database.server.pause()
        interrupt.start()
        for number in range(1_000_000):
            yield f"user{number}", str(number), "x" * 1000

    store = PostgresBackend.user_store(backend_of().options)
    try:
        with pytest.raises(KeyboardInterrupt), store.transaction(in_place=False) as changes:
            changes.insert(("nickname", "card_number", "plan"), rows())
    finally:
        database.server.resume()
        interrupt.join()
    assert database.run("SELECT * FROM users ORDER BY 1") == before


@contextmanager
def without_connections(database: Database) -> Iterator[None]:
    """The connections of the service are lost, and there are no others."""
    database.run("ALTER ROLE idv CONNECTION LIMIT 0")
    database.disconnect()
    yield
    database.run("ALTER ROLE idv CONNECTION LIMIT -1")


@pytest.mark.parametrize("fault", [stopped, hanging, without_connections])
def test_the_service_answers_503_and_never_404_while_its_database_fails(
    database: Database,
    tmp_path: Path,
    fault: Callable[[Database], AbstractContextManager[None]],
) -> None:
    """Within seconds after it is repaired it answers as before, whatever the circuit breaker."""
    limits = "cache: {ttl: 0s, negative_ttl: 0s, failure_memo: 0s, stale_if_error: 0s}\n"
    backend = (
        f"  - {{name: members, kind: postgres, dsn: '{database.dsn}', timeout: 300ms,"
        " breaker: {failures: 1, open_for: 60s}}\n"
    )
    with serving(limits + CONFIG + backend, tmp_path) as service:
        client = Client(service.port)
        assert client.by_input("@alice").status == 200
        assert client.by_input("@carol").status == 404
        with fault(database):
            assert {client.by_input(each).status for each in ["@alice", "@carol"] * 8} == {503}
        repaired_at = time.monotonic()
        eventually(lambda: client.by_input("@alice").status == 200)
        assert time.monotonic() - repaired_at < RECOVERY
        assert client.by_input("@carol").status == 404
