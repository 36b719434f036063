"""A shadow is compared with what is served, and changes nothing of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.http.live_directory import LiveDirectory, live_directory
from support.http.metrics import scrape
from support.processes.admin import HasAdmin, ask_admin
from support.processes.process import eventually
from support.processes.service import CONFIG, FIXTURE, USERS, Client, serving
from tornado_idv.features.shadow import shadow as shadow_module
from tornado_idv.features.shadow.view import RESULTS
from tornado_idv.model import User
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

ALICE = User("Free", "4000123412341234", "alice")
UNCACHED = "cache: {ttl: 0s, negative_ttl: 0s, failure_memo: 0s, stale_if_error: 0s}\n"
ALL = "shadow: {sample: 100%, rate: 1000/s}"


def shadow(directory: LiveDirectory, more: str = "timeout: 5s") -> str:
    return f"  - {{name: new, kind: upstream, base_url: '{directory.url}', {more}, {ALL}}}\n"


def config(backend: str) -> str:
    return f"{CONFIG}{USERS}{backend}admin: {{port: 0}}\n{UNCACHED}"


@pytest.fixture
def new() -> Iterator[LiveDirectory]:
    with live_directory(ALICE) as directory:
        yield directory


def counts(service: HasAdmin) -> dict[str, int]:
    """Return the comparisons by result, those that there are."""
    value = scrape(service)
    found = {
        each: int(value("idv_shadow_comparisons_total", backend="new", result=each))
        for each in RESULTS
    }
    return {word: count for word, count in found.items() if count}


def settled(service: HasAdmin, total: int = 1) -> dict[str, int]:
    """Return the comparisons once there are so many."""
    eventually(lambda: sum(counts(service).values()) >= total)
    return counts(service)


def status(service: HasAdmin) -> Any:
    return ask_admin(service, "/status.json").json


def wait_until_open(service: HasAdmin) -> None:
    eventually(lambda: status(service)["shadows"][0]["problem"] is None)


@contextmanager
def comparing(folder: Path, text: str) -> Iterator[Service]:
    """Run a service whose shadow is open."""
    with serving(text, folder) as service:
        wait_until_open(service)
        yield service


def test_difference_is_counted_and_nowhere_else_is_the_shadow_known(
    tmp_path: Path, new: LiveDirectory
) -> None:
    new.users[0] = User("Pro", ALICE.card_number, "alice", "https://other.example/a")
    with comparing(tmp_path, config(shadow(new))) as service:
        assert b'"plan":"Free"' in Client(service.port).by_input("@alice").body
        assert settled(service) == {"differs": 1}
        value = scrape(service)
        fields = {"nickname": 0, "card_number": 0, "plan": 1, "profile_url": 1}
        assert fields == {
            each: value("idv_shadow_differences_total", backend="new", field=each)
            for each in fields
        }
        # The comparison has asked the source once more, apart from the lookups that are served.
        assert value("idv_backend_requests_total", backend="users", outcome="found") == 1
        (record,) = status(service)["shadows"]
        assert (record["comparisons"]["differs"], record["fields"]) == (1, fields)
        assert {name: count for name, count in record["calls"].items() if count} == {"found": 1}
        explained = ask_admin(service, "/explain", {"input": "@bob"}).json
        assert [each["backend"] for each in explained["backends"]] == ["users"]
        assert ask_admin(service, "/cache/purge", {"backend": "new"}).status == 422
    assert new.requests == ["@alice"]


def test_hung_shadow_delays_no_response_and_is_bounded(tmp_path: Path, new: LiveDirectory) -> None:
    new.held |= {f"@user{i}" for i in range(10)} | {"@alice"}
    with comparing(tmp_path, config(shadow(new, "timeout: 20s, max_concurrent: 3"))) as service:
        client, started = Client(service.port), time.monotonic()
        assert client.by_input("@alice").status == 200
        for i in range(10):
            assert client.by_input(f"@user{i}").status == 404
        assert time.monotonic() - started < 10  # the shadow would take longer
        assert counts(service) == {"skipped": 8}
        eventually(lambda: len(new.requests) == 3)
        (record,) = status(service)["shadows"]
        assert record["in_flight"] == 3
        value = scrape(service)
        assert value("idv_backend_in_flight", backend="users") == 0
        assert value("idv_breaker_state", backend="users") == 0
        new.gate.set()
        assert settled(service, 11) == {"skipped": 8, "match": 3}
    assert len(new.requests) == 3


def test_shadow_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shadow_module, "_OPEN_AGAIN", 0.01)
    backend = f"  - {{name: new, kind: yaml, path: new.yaml, {ALL}}}\n"
    with serving(config(backend), tmp_path) as service:
        assert Client(service.port).by_input("@alice").status == 200
        assert counts(service) == {"skipped": 1}
        eventually(lambda: "new.yaml: cannot be read" in status(service)["shadows"][0]["problem"])
        health = ask_admin(service, "/health/ready")
        assert (health.status, health.json["degraded"]) == (200, ["shadow new"])
        (tmp_path / "whole.yaml").write_text(FIXTURE)
        (tmp_path / "whole.yaml").rename(tmp_path / "new.yaml")  # no attempt reads a part of it
        wait_until_open(service)
        assert Client(service.port).by_input("@alice").status == 200
        assert settled(service, 2) == {"skipped": 1, "match": 1}
    assert caplog.text.count("shadow new cannot be opened") == 1  # though it was tried often
