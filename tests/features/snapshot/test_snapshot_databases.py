"""Snapshots where a database, or a shared cache, reports what changes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from support.databases.postgres_server import Database, stopped
from support.databases.redis_server import running_server
from support.http.live_directory import live_directory
from support.processes.process import eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv.model import User

ALICE = User("Free", "4000123412341234", "alice")
_CACHE = "cache: {ttl: 1s, jitter: 0, snapshot: answers.snapshot, snapshot_interval: 1h}\n"
_LISTENERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_current_wal_insert_lsn%' "
    "AND state = 'idle' AND pid <> pg_backend_pid()"
)


def test_answers_of_postgres_with_notify_are_kept(tmp_path: Path, database: Database) -> None:
    config, snapshot = tmp_path / "config.yaml", tmp_path / "answers.snapshot"
    options = f"{{name: members, kind: postgres, dsn: '{database.dsn}', notify: {{}}}}"
    config.write_text(f"{CONFIG}  - {options}\n{_CACHE}")
    database.write(ALICE)
    with running(config) as service:
        # When it listens everything is purged, once.
        eventually(lambda: database.run(_LISTENERS) == "1")
        assert Client(service.port).by_input("@alice").status == 200
        service.stop()
    with stopped(database):
        for _ in range(2):
            with running(config) as service:
                assert b"Free" in Client(service.port).by_input("@alice").body
                assert Client(service.port).by_input("@bob").status == 503
                service.stop()
    with ExitStack() as stack:
        with stopped(database):
            service = stack.enter_context(running(config))
            assert Client(service.port).by_input("@alice").status == 200
        eventually(lambda: not snapshot.exists())  # what it missed meanwhile is not known
        with stopped(database):
            assert Client(service.port).by_input("@alice").status == 503


def test_answers_are_dropped_where_a_shared_cache_may_have_purged_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with live_directory(ALICE) as directory, running_server() as redis:
        config.write_text(
            f"{CONFIG}  - {{name: crm, kind: upstream, base_url: '{directory.url}',"
            " auth: {kind: bearer, token: any}}\n"
            f"shared_cache: {{kind: redis, url: '{redis.url}', secret: {'x' * 32}}}\n{_CACHE}"
        )
        for _ in range(2):
            with running(config) as service:
                assert Client(service.port).by_input("@alice").status == 200
                service.stop()
        directory.down = {"@alice"}
        redis.run("FLUSHALL")
        for _ in range(2):
            with running(config) as service:
                eventually(lambda: Client(service.port).by_input("@alice").status == 503)
                service.process.kill()
