"""A snapshot of the cache through restarts of real processes, while sources fail or change."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.http.live_directory import LiveDirectory, live_directory
from support.processes.admin import ask_admin
from support.processes.process import COMMAND, ServiceProcess, children, eventually, running
from support.processes.service import CONFIG, FIXTURE, Client, make_database
from tornado_idv.model import User

ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "4001", "bob")
_SNAPSHOT = "cache: {ttl: 1s, jitter: 0, snapshot: answers.snapshot, snapshot_interval: 1s}\n"
_BREAKER = "breaker: {failures: 1000}"


def upstream(directory: LiveDirectory, name: str = "crm") -> str:
    return (
        f"  - {{name: {name}, kind: upstream, base_url: '{directory.url}', {_BREAKER},"
        " auth: {kind: bearer, token: any}}\n"
    )


@contextmanager
def served(
    folder: Path, backends: str, cache: str = _SNAPSHOT, **server: object
) -> Iterator[ServiceProcess]:
    text = CONFIG
    for name, value in server.items():
        text = text.replace("port: 0", f"port: 0, {name}: {value}")
    config = folder / "config.yaml"
    config.write_text(f"{text}{backends}{cache}admin: {{port: 0}}\n")
    with running(config) as service:
        yield service


def stop(service: ServiceProcess) -> None:
    service.stop()


def kill(service: ServiceProcess) -> None:
    snapshot = service.log.parent / "answers.snapshot"
    snapshot.unlink(missing_ok=True)  # the next one has what was looked up before
    eventually(snapshot.exists)
    for pid in (*children(service.process.pid), service.process.pid):
        os.kill(pid, signal.SIGKILL)
    service.wait()


@pytest.fixture
def directory() -> Iterator[LiveDirectory]:
    with live_directory(ALICE, BOB) as server:
        yield server


@pytest.mark.parametrize("end", [stop, kill])
@pytest.mark.parametrize("workers", [1, 2])
def test_users_found_before_a_restart_are_served_while_their_source_is_down(
    tmp_path: Path, directory: LiveDirectory, workers: int, end: Callable[[ServiceProcess], None]
) -> None:
    with served(tmp_path, upstream(directory), workers=workers) as service:
        client = Client(service.port)
        for _ in range(20 if workers > 1 else 1):  # in each worker
            found = client.by_input("@alice")
            assert (found.status, client.by_card("4000123412341234").status) == (200, 200)
        assert client.by_input("@carol").status == 404
        end(service)
    assert stat.S_IMODE((tmp_path / "answers.snapshot").stat().st_mode) == 0o600
    directory.down = {"@alice", "@bob", "@carol", ALICE.card_number}
    for _ in range(2):
        with served(tmp_path, upstream(directory), workers=workers) as service:
            client = Client(service.port)
            for _ in range(10):
                assert client.by_input("@alice").body == found.body
                assert client.by_card("4000123412341234").body == found.body
            assert client.by_input("@bob").status == 503
            assert client.by_input("@carol").status == 503
            eventually(lambda: '"cache":"stale"' in service.read_log())
            end(service)
    directory.down.clear()
    directory.users = [User("Gold", "4000123412341234", "alice")]
    with served(tmp_path, upstream(directory), workers=workers) as service:
        assert b"Gold" in Client(service.port).by_input("@alice").body
        directory.absent.add(ALICE.card_number)
        assert Client(service.port).by_card(ALICE.card_number).status == 404
    # Of each of the last workers, if it was killed meanwhile.
    assert len(list(tmp_path.glob(".*.new"))) <= workers


def test_users_of_all_workers_are_found_again_unless_the_site_is_another(
    tmp_path: Path, directory: LiveDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.users = [User("Free", f"5{number}", f"user{number}") for number in range(30)]
    texts = [f"@{user.nickname}" for user in directory.users]

    def statuses() -> set[int]:
        with served(tmp_path, upstream(directory), workers=2) as service:
            found = {Client(service.port).by_input(each).status for each in texts}
            stop(service)
        return found

    assert statuses() == {200}
    directory.down = {*texts}
    assert statuses() == {200}
    sites = "profile_sites: ["
    other = CONFIG.replace(sites, f"{sites}https://b.example, ")
    assert other != CONFIG
    monkeypatch.setattr(sys.modules[__name__], "CONFIG", other)
    assert statuses() == {503}


def _edit_fixture(folder: Path) -> None:
    (folder / "users.yaml").write_text(FIXTURE.replace("Free", "Gold"))


def _change_database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "users.db")) as database:
        database.execute("UPDATE users SET plan = 'Gold'")
        database.commit()


def _replace_database(folder: Path) -> None:
    (folder / "users.db").unlink()
    make_database(folder / "users.db", ("carol", "1", "Free", None))


def _write_ahead(folder: Path) -> None:
    """Change a database in WAL mode, as a writer that is killed leaves it."""
    if os.fork() == 0:
        try:
            database = sqlite3.connect(folder / "users.db")
            database.execute("UPDATE users SET plan = 'Gold'")
            database.commit()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()


SOURCES = {
    "fixture": ("  - {name: users, kind: yaml, path: users.yaml}\n", _edit_fixture),
    "sqlite": ("  - {name: users, kind: sqlite, path: users.db}\n", _change_database),
    "sqlite, replaced": ("  - {name: users, kind: sqlite, path: users.db}\n", _replace_database),
    "sqlite, WAL": ("  - {name: users, kind: sqlite, path: users.db}\n", _write_ahead),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("changed", [False, True])
def test_answers_of_a_file_that_changed_meanwhile_are_dropped_and_those_of_later_backends(
    tmp_path: Path, directory: LiveDirectory, source: str, *, changed: bool
) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE)
    make_database(tmp_path / "users.db", ("alice", ALICE.card_number, "Free", None))
    if "WAL" in source:
        with closing(sqlite3.connect(tmp_path / "users.db")) as database:
            database.execute("PRAGMA journal_mode = WAL")
    backend, change = SOURCES[source]
    backends = upstream(directory, "first") + backend + upstream(directory, "last")
    directory.absent = {"@alice"}
    directory.users = [BOB]
    with served(tmp_path, backends) as service:
        client = Client(service.port)
        assert b"Free" in client.by_input("@alice").body
        assert client.by_input("@bob").status == 200
        stop(service)
    if changed:
        change(tmp_path)
    directory.down = {"@alice", "@bob"}
    with served(tmp_path, backends) as service:
        client = Client(service.port)
        expected = 503 if changed else 200
        assert client.by_input("@alice").status == expected
        assert client.by_input("@bob").status == 200  # it was found by the first backend
        stop(service)


def test_purged_user_is_not_back_after_a_crash(tmp_path: Path, directory: LiveDirectory) -> None:
    snapshot = tmp_path / "answers.snapshot"
    cache = _SNAPSHOT.replace("interval: 1s", "interval: 10s")
    with served(tmp_path, upstream(directory), cache, workers=2) as service:
        client = Client(service.port)
        for _ in range(20):
            assert client.by_input("@alice").status == 200
        assert client.by_input("@bob").status == 200
        eventually(snapshot.exists)
        assert b"alice" in snapshot.read_bytes()
        directory.down = {"@alice", "@bob", ALICE.card_number}
        reply = ask_admin(service, "/cache/purge", {"card_number": ALICE.card_number})
        assert reply.status == 200
        assert not snapshot.exists()
        eventually(snapshot.exists)
        assert b"alice" not in snapshot.read_bytes()
        ask_admin(service, "/cache/purge", {"all": True})
        for pid in (*children(service.process.pid), service.process.pid):
            os.kill(pid, signal.SIGKILL)
        service.wait()
    with served(tmp_path, upstream(directory), cache) as service:
        assert Client(service.port).by_input("@alice").status == 503


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("text", ["@alice", ALICE.card_number])
def test_deleted_user_who_was_not_found_is_not_back_after_a_crash(
    tmp_path: Path, directory: LiveDirectory, text: str, *, restarted: bool
) -> None:
    snapshot = tmp_path / "answers.snapshot"
    cache = _SNAPSHOT.replace("interval: 1s", "interval: 10s")

    def status(service: ServiceProcess, text: str) -> int:
        client = Client(service.port)
        return (client.by_input if text.startswith("@") else client.by_card)(text).status

    with served(tmp_path, upstream(directory), cache) as service:
        assert [status(service, each) for each in ("@alice", "@bob")] == [200, 200]
        if restarted:
            stop(service)
        else:
            eventually(snapshot.exists)
            eventually(lambda: b"alice" in snapshot.read_bytes())
            directory.absent = {"@alice", ALICE.card_number}
            eventually(lambda: status(service, text) == 404)
            eventually(lambda: not snapshot.exists())
            service.process.kill()
    directory.absent = {"@alice", ALICE.card_number}
    if restarted:
        with served(tmp_path, upstream(directory), cache) as service:
            assert snapshot.exists()
            assert status(service, text) == 404
            eventually(lambda: not snapshot.exists())
            eventually(lambda: status(service, "@bob") == 200)
            service.process.kill()
    directory.down = {"@alice", "@bob", ALICE.card_number}
    with served(tmp_path, upstream(directory), cache) as service:
        assert status(service, "@alice") == 503
        service.process.kill()


def test_second_service_does_not_read_the_file(tmp_path: Path, directory: LiveDirectory) -> None:
    with served(tmp_path, upstream(directory)) as service:
        assert Client(service.port).by_input("@alice").status == 200
        stop(service)
    config = tmp_path / "config.yaml"
    with served(tmp_path, upstream(directory)) as service:
        directory.down = {"@alice"}
        assert Client(service.port).by_input("@alice").status == 200
        # Of an interpreter of its own: those of `running` are forked from one process.
        command = [*COMMAND, "serve", "--config", str(config)]
        with (
            (tmp_path / "second.log").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as second,
        ):
            assert second.stdout is not None
            try:
                address = next(line for line in second.stdout if line.startswith("Listening on"))
                port = int(address.split("/")[2].rpartition(":")[2])
                assert Client(port).by_input("@alice").status == 503
            finally:
                second.kill()
        reason = "answers.snapshot: is not read: another service writes it"
        assert reason in (tmp_path / "second.log").read_text()
        stop(service)


def test_file_of_a_volume_of_kubernetes_is_read(tmp_path: Path, directory: LiveDirectory) -> None:
    with served(tmp_path, upstream(directory)) as service:
        assert Client(service.port).by_input("@alice").status == 200
        stop(service)
    directory.down = {"@alice"}
    (tmp_path / "answers.snapshot").chmod(0o660)
    with served(tmp_path, upstream(directory)) as service:
        assert Client(service.port).by_input("@alice").status == 200
        stop(service)


def test_unwritable_snapshot_stops_nothing(tmp_path: Path, directory: LiveDirectory) -> None:
    cache = _SNAPSHOT.replace("answers.snapshot", "missing/answers.snapshot")
    with served(tmp_path, upstream(directory), cache) as service:
        client = Client(service.port)
        assert client.by_input("@alice").status == 200
        eventually(lambda: "missing/answers.snapshot: cannot be written" in service.read_log())
        ready = ask_admin(service, "/health/ready?verbose").json
        assert ready["degraded"] == ["cache snapshot"]
        assert "missing/answers.snapshot: cannot be written" in ready["cache_snapshot"]["error"]
        assert ask_admin(service, "/cache/purge", {"all": True}).status == 200
        (tmp_path / "missing").mkdir()
        eventually(lambda: ask_admin(service, "/health/ready").json["status"] == "ready")
        assert (tmp_path / "missing" / "answers.snapshot").exists()
        stop(service)
        assert service.read_log().count("cannot be written") == 1


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"junk"), os.mkfifo, Path.mkdir])
def test_something_else_in_its_place_stops_no_start(
    tmp_path: Path, directory: LiveDirectory, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "answers.snapshot")
    with served(tmp_path, upstream(directory)) as service:
        assert Client(service.port).by_input("@alice").status == 200
        eventually(lambda: ask_admin(service, "/health/ready").json["status"] == "degraded")
        stop(service)
        assert service.read_log().count("is ignored") == 1


def test_reload_turns_it_on_and_keeps_the_cache(tmp_path: Path, directory: LiveDirectory) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with served(tmp_path, upstream(directory), "cache: {snapshot_interval: 1s}\n") as service:
        client, config = Client(service.port), tmp_path / "config.yaml"
        assert client.by_input("@alice").status == 200
        assert client.by_input("@carol").status == 404
        before, requests = config.read_text(), [*directory.requests]

        def reload(options: str) -> None:
            options = f"cache: {{snapshot_interval: 1s, {options}}}"
            config.write_text(before.replace("cache: {snapshot_interval: 1s}", options))
            assert ask_admin(service, "/reload", {}).status == 200
            assert client.by_input("@alice").status == 200

        for file in (one, two):
            reload(f"snapshot: {file.name}")
            eventually(file.exists)
            assert b"alice" in file.read_bytes()
            assert is_written_by_another(file)
        assert client.by_input("@carol").status == 404
        assert directory.requests == requests
        assert not is_written_by_another(one)
        reload("snapshot: one, negative_ttl: 1s")
        assert directory.requests == requests
        eventually(lambda: one.exists() and not two.exists())
        ask_admin(service, "/cache/purge", {"all": True})
        eventually(one.exists)
        stop(service)
        assert not two.exists()


def is_written_by_another(path: Path) -> bool:
    """Return whether another process has the lock."""
    with path.with_name(f".{path.name}.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
