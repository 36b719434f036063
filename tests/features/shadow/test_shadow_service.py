"""A shadow is compared with what is served, and changes nothing of it."""

from __future__ import annotations

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
from support.processes.service import CONFIG, USERS, Client, serving
from tornado_idv.features.shadow import shadow as shadow_module
from tornado_idv.features.shadow.file import ShadowFile
from tornado_idv.features.shadow.view import RESULTS
from tornado_idv.model import User
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

ALICE, BOB = User("Free", "4000123412341234", "alice"), User("Free", "4000000000000002", "bob")
FIXTURE = (
    "users:\n"
    '  - {nickname: "@alice", card_number: "4000123412341234", plan: Free}\n'
    '  - {nickname: "@bob", card_number: "4000000000000002", plan: Free}\n'
)
UNCACHED = "cache: {ttl: 0s, negative_ttl: 0s, failure_memo: 0s, stale_if_error: 0s}\n"
ALL = "sample: 100%, rate: 1000/s"


def shadow(directory: LiveDirectory, options: str = ALL, more: str = "") -> str:
    return (
        f"  - {{name: new, kind: upstream, base_url: '{directory.url}',"
        f" {more or 'timeout: 5s,'} shadow: {{{options}}}}}\n"
    )


def config(*backends: str, cache: str = UNCACHED) -> str:
    return f"{CONFIG}{''.join(backends)}admin: {{port: 0}}\n{cache}"


@pytest.fixture
def new() -> Iterator[LiveDirectory]:
    with live_directory(ALICE, BOB) as directory:
        yield directory


@pytest.fixture(autouse=True)
def users(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")


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


def change(new: LiveDirectory, case: str) -> None:
    if case == "differs":
        new.users[0] = User("Pro", ALICE.card_number, "alice", "https://other.example/a")
    elif case == "missing":
        new.absent.add("@alice")
    elif case == "extra":
        new.users.append(User("Free", "5", "carol"))
    elif case == "target_failed":
        new.down.add("@alice")


@pytest.mark.parametrize("case", ["match", "differs", "missing", "extra", "target_failed"])
def test_each_result_is_counted(tmp_path: Path, new: LiveDirectory, case: str) -> None:
    change(new, case)
    asked, response = ("@carol", 404) if case == "extra" else ("@alice", 200)
    with comparing(tmp_path, config(USERS, shadow(new))) as service:
        assert Client(service.port).by_input(asked).status == response
        assert settled(service) == {case: 1}
        fields = {"plan", "profile_url"} if case == "differs" else set()
        value = scrape(service)
        for each in ("nickname", "card_number", "plan", "profile_url"):
            expected = int(each in fields)
            counted = value("idv_shadow_differences_total", backend="new", field=each)
            assert counted == expected
        (record,) = status(service)["shadows"]
        assert record["comparisons"][case] == 1
        assert {each for each, count in record["fields"].items() if count} == fields


def test_failure_of_the_source_is_no_question_to_shadow(tmp_path: Path, new: LiveDirectory) -> None:
    with live_directory(ALICE) as old:
        old.down.add("@alice")
        source = f"  - {{name: old, kind: upstream, base_url: '{old.url}'}}\n"
        with comparing(tmp_path, config(source, shadow(new))) as service:
            assert Client(service.port).by_input("@alice").status == 503
            assert settled(service) == {"source_failed": 1}
    assert new.requests == []


def test_stale_answer_in_place_of_a_failure_is_not_compared(
    tmp_path: Path, new: LiveDirectory
) -> None:
    cache = "cache: {ttl: 0s, stale_if_error: 1h, failure_memo: 0s}\n"
    with live_directory(ALICE) as old:
        source = f"  - {{name: old, kind: upstream, base_url: '{old.url}'}}\n"
        with comparing(tmp_path, config(source, shadow(new), cache=cache)) as service:
            assert Client(service.port).by_input("@alice").status == 200
            assert settled(service) == {"match": 1}
            old.down.add("@alice")
            assert Client(service.port).by_input("@alice").status == 200
            assert settled(service, 2) == {"match": 1, "source_failed": 1}


def test_shadow_without_its_canary_is_unverified(tmp_path: Path, new: LiveDirectory) -> None:
    """Of the users that it does not find alone: who is found is found."""
    text = shadow(new, more='canary: {nickname: "@bird", max_age: 0s},')
    new.absent.add("@alice")
    with serving(config(USERS, text), tmp_path) as service:
        # Its canary may already be a problem when it is first asked for.
        eventually(lambda: status(service)["shadows"][0]["problem"] != "not open yet")
        assert Client(service.port).by_input("@alice").status == 200
        assert Client(service.port).by_input("@bob").status == 200
        assert settled(service, 2) == {"match": 1, "unverified": 1}
        eventually(lambda: "@bird is not found" in (status(service)["shadows"][0]["problem"] or ""))
        health = ask_admin(service, "/health/ready")
        assert (health.status, health.json["status"]) == (200, "degraded")
        assert scrape(service)("idv_degraded", part="shadow new") == 1


def test_hung_shadow_delays_no_response_and_is_bounded(tmp_path: Path, new: LiveDirectory) -> None:
    new.held |= {f"@user{i}" for i in range(10)} | {"@alice"}
    text = shadow(new, more="timeout: 20s, max_concurrent: 3,")
    with comparing(tmp_path, config(USERS, text)) as service:
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
        assert value("idv_backend_requests_total", backend="users", outcome="not_found") == 10
        assert value("idv_backend_in_flight", backend="users") == 0
        assert value("idv_breaker_state", backend="users") == 0
        new.gate.set()
        assert settled(service, 11) == {"skipped": 8, "match": 3}
    assert len(new.requests) == 3


def test_dead_shadow_opens_its_own_breaker_alone(tmp_path: Path, new: LiveDirectory) -> None:
    new.down |= {"@alice", "@bob"}
    with comparing(tmp_path, config(USERS, shadow(new))) as service:
        for _ in range(8):
            assert Client(service.port).by_input("@alice").status == 200
        assert settled(service, 8) == {"target_failed": 8}
        (record,) = status(service)["shadows"]
        assert (record["breaker"], record["available"]) == ("open", False)
        assert record["failing_since"] is not None
        assert sum(record["calls"].values()) == 8
        (served,) = status(service)["backends"]
        assert (served["breaker"], served["available"]) == ("closed", True)
        assert status(service)["degraded"] == ["shadow new"]


def test_shadow_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_module, "_OPEN_AGAIN", 0.01)
    backend = f"  - {{name: new, kind: yaml, path: new.yaml, shadow: {{{ALL}}}}}\n"
    with serving(config(USERS, backend), tmp_path) as service:
        assert Client(service.port).by_input("@alice").status == 200
        assert counts(service) == {"skipped": 1}
        eventually(lambda: "new.yaml: cannot be read" in status(service)["shadows"][0]["problem"])
        health = ask_admin(service, "/health/ready")
        assert (health.status, health.json["degraded"]) == (200, ["shadow new"])
        (tmp_path / "new.yaml").write_text(FIXTURE)
        wait_until_open(service)
        assert Client(service.port).by_input("@alice").status == 200
        assert settled(service, 2) == {"skipped": 1, "match": 1}


@pytest.mark.parametrize("hits", ["false", "true"])
def test_cached_answers_are_compared_to_hits(tmp_path: Path, new: LiveDirectory, hits: str) -> None:
    """For each of them the source is asked what it holds now."""
    text = config(USERS, shadow(new, f"{ALL}, hits: {hits}"), cache="")
    with comparing(tmp_path, text) as service:
        for _ in range(4):
            assert Client(service.port).by_input("@alice").status == 200
        calls = 4 if hits == "true" else 1
        assert settled(service, calls) == {"match": calls}
        value = scrape(service)
        # Those of comparisons are beside the limits of the lookups that are served.
        assert value("idv_backend_requests_total", backend="users", outcome="found") == 1
        assert value("idv_cache_lookups_total", result="hit") == 3


def test_comparisons_are_kept_by_user_in_a_file(tmp_path: Path, new: LiveDirectory) -> None:
    """What waits is written at a stop, and a service that starts again adds to it."""
    new.absent.add("@alice")
    text = config(USERS, shadow(new, f"{ALL}, state: new.db"))
    with comparing(tmp_path, text) as service:
        for number, asked in enumerate(("@alice", "@bob", "@carol"), 1):
            Client(service.port).by_input(asked)
            settled(service, number)
    with comparing(tmp_path, text) as service:
        Client(service.port).by_input("@alice")
        settled(service)
    contents = ShadowFile(tmp_path / "new.db", "new").read()
    assert [(each.result, each.queries) for each in contents.differing] == [("missing", ["@alice"])]
    assert (contents.matches, contents.totals) == (1, {"missing": 2, "match": 2})


def test_query_that_the_shadow_is_not_asked_for_is_not_compared(
    tmp_path: Path, new: LiveDirectory
) -> None:
    with comparing(
        tmp_path, config(USERS, shadow(new, more="timeout: 5s, match: '@a.*',"))
    ) as service:
        assert Client(service.port).by_input("@bob").status == 200
        assert Client(service.port).by_input("@alice").status == 200
        assert settled(service) == {"match": 1}
    assert new.requests == ["@alice"]


def test_explain_and_purge_do_not_know_a_shadow(tmp_path: Path, new: LiveDirectory) -> None:
    with comparing(tmp_path, config(USERS, shadow(new))) as service:
        explained = ask_admin(service, "/explain", {"input": "@carol"}).json
        assert [each["backend"] for each in explained["backends"]] == ["users"]
        assert ask_admin(service, "/cache/purge", {"backend": "new"}).status == 422
    assert new.requests == []
