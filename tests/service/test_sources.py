"""Sources that differ in a secret alone: no answer of one is ever given as that of the other."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.databases.redis_server import running_server
from support.http.live_directory import LiveDirectory
from support.http.threaded_server import serving_in_thread
from support.processes.admin import ask_admin
from support.processes.process import ServiceProcess, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv.model import User

ALICE = User("Free", "4000123412341234", "alice")
OTHER_ALICE = User("Pro", "4000123412341234", "alice")
BOB = User("Pro", "4001", "bob")
_CACHE = "cache: {ttl: 1h, negative_ttl: 1h, snapshot: answers.snapshot}\n"


class Tenants(LiveDirectory):
    """An upstream whose token selects the tenant."""

    tenants: ClassVar[dict[str, list[User]]] = {"a" * 20: [ALICE], "b" * 20: [OTHER_ALICE, BOB]}

    def respond(self, text: str, fields: Message) -> tuple[int, dict[str, Any]]:
        self.users = self.tenants[fields["Authorization"].removeprefix("Bearer ")]
        return super().respond(text, fields)


ONE, TWO = Tenants.tenants


@pytest.fixture
def directory() -> Iterator[Tenants]:
    """@alice is ``Free`` in the first tenant, ``Pro`` in the second. That one has @bob, too."""
    with serving_in_thread(Tenants()) as server:
        yield server


@contextmanager
def served(
    folder: Path, directory: Tenants, secret: str, more: str = _CACHE
) -> Iterator[ServiceProcess]:
    config = folder / "config.yaml"
    kind = f"kind: upstream, base_url: '{directory.url}'"
    backend = f"  - {{name: users, {kind}, auth: {{kind: bearer, token: '{secret}'}}}}"
    config.write_text(f"{CONFIG}{backend}\n{more}admin: {{port: 0}}\n")
    with running(config) as service:
        yield service


def answers(service: ServiceProcess) -> tuple[str, int]:
    """Return the plan of @alice, and the status of @bob."""
    client = Client(service.port)
    found = client.by_input("@alice")
    assert found.status == 200
    return json.loads(found.body)["plan"], client.by_input("@bob").status


def test_shared_cache_is_not_shared_by_two_sources(tmp_path: Path, directory: Tenants) -> None:
    with running_server() as shared:
        options = f"kind: redis, url: '{shared.url}', timeout: 1s, secret: {'x' * 32}"
        cache = f"shared_cache: {{{options}}}\n"
        for secret, expected, size in [(ONE, ("Free", 404), 3), (TWO, ("Pro", 200), 5)]:
            with served(tmp_path, directory, secret, cache) as service:
                assert answers(service) == expected
                # Two answers for each source, and the marks.
                eventually(lambda size=size: shared.run("DBSIZE") == b":%d\r\n" % size)
        directory.down |= {"@alice", "@bob"}
        with served(tmp_path, directory, TWO, cache) as service:
            assert answers(service) == ("Pro", 200)


def test_snapshot_of_another_source_is_ignored(tmp_path: Path, directory: Tenants) -> None:
    with served(tmp_path, directory, ONE) as service:
        assert answers(service) == ("Free", 404)
        service.stop()
    directory.down |= {"@alice", "@bob"}
    with served(tmp_path, directory, TWO) as service:
        assert Client(service.port).by_input("@alice").status == 503
        assert "written with other settings of backends" in service.read_log()
        service.process.kill()
    with served(tmp_path, directory, ONE) as service:
        assert b"Free" in Client(service.port).by_input("@alice").body
        service.process.kill()
    content = (tmp_path / "answers.snapshot").read_bytes()
    assert ONE.encode() not in content
    assert hashlib.sha256(ONE.encode()).hexdigest().encode() not in content


def test_reload_opens_another_source_that_a_file_names(tmp_path: Path, directory: Tenants) -> None:
    file = tmp_path / "secret"
    file.write_text(ONE)
    with served(tmp_path, directory, "${file:secret}") as service:
        assert answers(service) == ("Free", 404)
        file.write_text(TWO)
        assert ask_admin(service, "/reload", {}).status == 200
        assert answers(service) == ("Pro", 200)
