"""The key store in PostgreSQL where two servers take themselves for the primary."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from idv_postgres.key_store import PostgresKeyStore
from support.databases.key_stores import config_with, make_store, open_store
from support.databases.postgres_cluster import Cluster, running_cluster
from support.databases.postgres_server import PostgresServer
from support.http.repeated_requests import BODY, PATH
from support.http.tcp_relay import relaying
from support.processes.admin import ask_admin
from support.processes.ports import free_port
from support.processes.process import Invoke, eventually
from support.processes.service import FIXTURE, KEY, Client, serving
from tornado_idv.keys.token import issue
from tornado_idv.service import keys as module
from tornado_idv.service.keys import StoreFollower

pytestmark = pytest.mark.slow

STATES = "SELECT id || ' ' || (revoked IS NULL) FROM idv_keys.keys ORDER BY id"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """A primary and a standby, with the database ``postgres``; afterwards they are that again."""
    running.primary.run("DROP SCHEMA IF EXISTS idv_keys CASCADE")
    running.wait_for_replay()
    yield running
    running.primary.stop()
    running.primary.start()
    if running.standby.process is None or running.standby.run("SELECT pg_is_in_recovery()") == "f":
        running.join()


def dsn(*servers: PostgresServer | int) -> str:
    ports = (each if isinstance(each, int) else each.port for each in servers)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"postgresql://postgres@{hosts}/postgres?sslmode=disable"


def tokens_of(cluster: Cluster, *key_ids: str) -> dict[str, str]:
    """Issue keys, which both servers have."""
    with closing(PostgresKeyStore(SecretStr(dsn(cluster.primary)))) as place:
        tokens = make_store(place, *key_ids)
    cluster.wait_for_replay()
    return tokens


def split(cluster: Cluster) -> None:
    """Make the standby a primary, while the old one runs."""
    assert cluster.standby.run("SELECT pg_promote()") == "t"


def configured(path: Path, store: str) -> Path:
    (path.parent / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    path.write_text(f"{config_with(store)}admin: {{port: 0}}\n", encoding="utf-8")
    return path


def test_a_standby_a_lost_host_and_another_name_are_no_second_primary(
    cluster: Cluster, tmp_path: Path, invoke: Invoke
) -> None:
    tokens_of(cluster, "shop")
    port = cluster.primary.port
    hosts = [cluster.standby, free_port(), cluster.primary]
    uri = dsn(*hosts).replace("/postgres?", f",localhost:{port}/postgres?")
    config = configured(tmp_path / "config.yaml", uri)
    assert invoke("keys", "revoke", "shop", "-c", config).exit_code == 0


async def test_a_host_that_leads_to_another_primary_by_now_is_noticed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its name or address moves in a failover, and a connection to the old one is kept."""
    monkeypatch.setattr(module, "_SERVER_INTERVAL", 0.0)
    await asyncio.to_thread(tokens_of, cluster, "shop")
    async with relaying(cluster.primary.port) as relay:
        followed = StoreFollower(PostgresKeyStore(SecretStr(dsn(relay.port))))
        await asyncio.to_thread(followed.poll)
        assert followed.error is None
        split(cluster)
        relay.target = cluster.standby.port
        await asyncio.to_thread(followed.poll)
        assert "are both primaries" in str(followed.error)
        cluster.primary.stop()
        await asyncio.to_thread(followed.poll)
        assert followed.error is None
        await asyncio.to_thread(followed.location.close)


COMMANDS = ("revoke shop", "disable shop", "rotate shop", "issue new", "issue new --create")
COMMANDS += ("list", "show shop", "export", "import keys.jsonl --update")


def test_two_primaries_are_reported_and_keys_that_a_failover_brings_back(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    invoke: Invoke,
) -> None:
    """Commands refuse, whichever is named first; neither has changed then."""
    monkeypatch.chdir(tmp_path)
    Path("keys.jsonl").write_text(f'{{"id": "new", "sha256": "{"0" * 64}"}}')
    monkeypatch.setattr(module, "_SERVER_INTERVAL", 0.2)
    tokens = {"caller": KEY, "unknown": issue("unknown"), **tokens_of(cluster, "shop")}
    config = configured(tmp_path / "config.yaml", dsn(*cluster.servers)).read_text("utf-8")

    def status(key_id: str) -> int:
        fields = {"Authorization": f"Bearer {tokens[key_id]}"}
        return Client(service.port).post(PATH, BODY, fields).status

    def report() -> tuple[str, list[str], str | None]:
        record = ask_admin(service, "/health/ready?verbose").json
        return record["status"], record["degraded"], record["key_store"]["error"]

    cluster.standby.run("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()")
    eventually(lambda: cluster.primary.run("SELECT count(*) FROM pg_stat_replication") == "0")
    with serving(config, tmp_path) as service:
        with closing(PostgresKeyStore(SecretStr(dsn(cluster.primary)))) as place:
            with open_store(place) as store:
                store.revoke("shop", time.time())
            eventually(lambda: status("shop") == 401)
        assert report() == ("ready", [], None)
        split(cluster)
        eventually(lambda: report()[0] == "degraded")
        (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert "are both primaries" in error
        assert (report()[1], "are both primaries" in str(report()[2])) == (["key store"], True)
        assert [status(each) for each in tokens] == [200, 503, 503]
        assert "undone" not in caplog.text
        for servers in (cluster.servers, cluster.servers[::-1]):
            path = configured(tmp_path / "commands.yaml", dsn(*servers))
            for command in COMMANDS:
                result = invoke("keys", *command.split(), "-c", path)
                assert (result.exit_code, result.stdout) == (1, ""), command
                assert all(f"127.0.0.1:{each.port}" in result.stderr for each in servers)
                assert "are both primaries" in result.stderr
        assert [each.run(STATES) for each in cluster.servers] == ["shop false", "shop true"]
        cluster.primary.stop()
        eventually(lambda: report() == ("ready", [], None))
        (warning,) = [each.getMessage() for each in caplog.records if "undone" in each.getMessage()]
        assert "the revocation of the key shop" in warning
        assert [status(each) for each in tokens] == [200, 401, 200]


async def test_a_lost_connection_does_not_lead_back_to_the_old_primary(cluster: Cluster) -> None:
    await asyncio.to_thread(tokens_of, cluster, "shop")
    async with relaying(cluster.primary.port) as old, relaying(cluster.standby.port) as new:
        split(cluster)
        old.bar(("127.0.0.1",))
        followed = StoreFollower(PostgresKeyStore(SecretStr(dsn(old.port, new.port))))
        await asyncio.to_thread(followed.poll)
        cluster.standby.run("UPDATE idv_keys.keys SET revoked = 1")
        old.bar(())
        new.cut()
        await asyncio.to_thread(followed.poll)
        assert [key.rejected for key in followed.snapshot.keys.values()] == ["revoked"]
        await asyncio.to_thread(followed.location.close)
