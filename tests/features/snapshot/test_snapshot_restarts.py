"""A snapshot of the cache through restarts of real processes, while sources fail or change."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.http.live_directory import LiveDirectory, live_directory
from support.processes.admin import ask_admin
from support.processes.process import ServiceProcess, children, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv.model import User

ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "4001", "bob")
_SNAPSHOT = "cache: {ttl: 1s, jitter: 0, snapshot: answers.snapshot, snapshot_interval: 1s}\n"


def upstream(directory: LiveDirectory) -> str:
    return (
        f"  - {{name: crm, kind: upstream, base_url: '{directory.url}',"
        " breaker: {failures: 1000}, auth: {kind: bearer, token: any}}\n"
    )


@contextmanager
def served(
    folder: Path, backends: str, cache: str = _SNAPSHOT, workers: int = 1
) -> Iterator[ServiceProcess]:
    text = CONFIG.replace("port: 0", f"port: 0, workers: {workers}")
    config = folder / "config.yaml"
    config.write_text(f"{text}{backends}{cache}admin: {{port: 0}}\n")
    with running(config) as service:
        yield service


def snapshots(folder: Path) -> list[Path]:
    return [*folder.glob("answers.snapshot*")]


def kill(service: ServiceProcess) -> None:
    """Kill a service of two workers after both have written what was looked up before."""
    for each in snapshots(service.log.parent):
        each.unlink(missing_ok=True)
    eventually(lambda: len(snapshots(service.log.parent)) == 2)
    for pid in (*children(service.process.pid), service.process.pid):
        os.kill(pid, signal.SIGKILL)
    service.wait()


@pytest.fixture
def directory() -> Iterator[LiveDirectory]:
    with live_directory(ALICE, BOB) as server:
        yield server


@pytest.mark.parametrize(("workers", "end"), [(1, ServiceProcess.stop), (2, kill)])
def test_users_found_before_a_restart_are_served_while_their_source_is_down(
    tmp_path: Path, directory: LiveDirectory, workers: int, end: Callable[[ServiceProcess], None]
) -> None:
    """Each worker restores the files of all workers."""
    others = [User("Free", f"5{number}", f"user{number}") for number in range(20)]
    directory.users += others
    texts = [f"@{user.nickname}" for user in others]
    with served(tmp_path, upstream(directory), workers=workers) as service:
        client = Client(service.port)
        found = client.by_card(ALICE.card_number)
        assert {client.by_input(each).status for each in texts} == {200}
        end(service)
    directory.down = {ALICE.card_number, "@bob", *texts}
    with served(tmp_path, upstream(directory), workers=workers) as service:
        client = Client(service.port)
        assert {client.by_card(ALICE.card_number).body for _ in range(10)} == {found.body}
        assert {client.by_input(each).status for each in texts} == {200}
        assert client.by_input("@bob").status == 503
        eventually(lambda: '"cache":"stale"' in service.read_log())


def test_purged_user_is_not_back_after_a_crash(tmp_path: Path, directory: LiveDirectory) -> None:
    def written() -> bytes:
        return b"".join(each.read_bytes() for each in snapshots(tmp_path))

    with served(tmp_path, upstream(directory), workers=2) as service:
        client = Client(service.port)
        for _ in range(20):
            assert client.by_input("@alice").status == 200
        eventually(lambda: written().count(b'"@alice"') == 2)
        directory.down = {"@alice", "@bob", ALICE.card_number}
        reply = ask_admin(service, "/cache/purge", {"card_number": ALICE.card_number})
        assert reply.status == 200
        assert b"alice" not in written()
        kill(service)
    with served(tmp_path, upstream(directory)) as service:
        assert Client(service.port).by_input("@alice").status == 503


def test_reload_turns_it_on_and_keeps_the_cache(tmp_path: Path, directory: LiveDirectory) -> None:
    cache = "cache: {snapshot_interval: 1s}"
    with served(tmp_path, upstream(directory), f"{cache}\n") as service:
        client, config = Client(service.port), tmp_path / "config.yaml"
        assert client.by_input("@alice").status == 200
        assert client.by_input("@carol").status == 404
        before, requests = config.read_text(), [*directory.requests]
        for name in ("one", "two", "one, negative_ttl: 1s"):
            options = f"cache: {{snapshot_interval: 1s, snapshot: {name}}}"
            config.write_text(before.replace(cache, options))
            assert ask_admin(service, "/reload", {}).status == 200
            assert client.by_input("@alice").status == 200
            file = tmp_path / name.partition(",")[0]
            eventually(file.exists)
            assert b"alice" in file.read_bytes()
            eventually(lambda: len([*tmp_path.glob("one"), *tmp_path.glob("two")]) == 1)
            if "," not in name:
                assert client.by_input("@carol").status == 404
        assert directory.requests == requests
