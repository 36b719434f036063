"""The PostgreSQL backend while its database stops, hangs, or is full."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
import trustme

from idv_postgres.backend import PostgresBackend
from support.databases.postgres_backends import backend_of, serving
from support.databases.postgres_server import ALICE, BOB, PASSWORD, Database, verifier
from support.fakes.outcomes import outcome
from tornado_idv import yaml_loader

pytestmark = pytest.mark.slow

RECOVERY = 5.0
"""Seconds after which a database that is there again must be used."""


@pytest.fixture(autouse=True)
def running(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with this table and without a session; the server runs after it, too."""
    monkeypatch.setattr(PostgresBackend, "retry_interval", 0.1)
    database.write(ALICE, BOB)
    database.disconnect()
    yield
    if database.server.process is None:
        database.server.start()


async def wait_for(backend: PostgresBackend, beginning: str) -> None:
    """Repeat a lookup until it ends so; before it may not end by "not found"."""
    async with asyncio.timeout(RECOVERY):
        while not (ended := await outcome(backend)).startswith(beginning):
            assert ended != "not found"
            await asyncio.sleep(0.02)


async def test_a_password_that_is_changed_in_its_file_is_used_for_new_connections(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tornado_idv.files.FileSecret.check_interval", 0.0)
    secret = yaml_loader.FileText(database.dsn)
    secret.path = tmp_path / "dsn"
    secret.path.write_text(database.dsn)
    async with serving(database, dsn=secret) as backend:
        database.run("ALTER ROLE idv PASSWORD 'another'")
        try:
            database.disconnect()
            await wait_for(backend, "broken: the password in the dsn is wrong")
            for other in ("mysql://canary", database.dsn.replace(database.name, "postgres")):
                secret.path.write_text(other.replace(PASSWORD, "another"))
                assert "the password in the dsn is wrong" in await outcome(backend)
            secret.path.write_text(database.dsn.replace(PASSWORD, "another"))
            await wait_for(backend, "found")
        finally:
            database.run(f"ALTER ROLE idv PASSWORD '{verifier(PASSWORD)}'")


async def test_tls_is_verified_as_the_dsn_says(database: Database, tmp_path: Path) -> None:
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


def test_an_import_into_a_frozen_server_is_ended_by_a_signal_and_changes_nothing(
    database: Database,
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

    store = PostgresBackend.user_store(backend_of(database).options)
    try:
        with pytest.raises(KeyboardInterrupt), store.transaction(in_place=False) as changes:
            changes.insert(("nickname", "card_number", "plan"), rows())
    finally:
        database.server.resume()
        interrupt.join()
    assert database.run("SELECT * FROM users ORDER BY 1") == before
