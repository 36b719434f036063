"""Commands of the admin process: who is asked, how long that takes, and what is replied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.supervision import CONFIG, Simulation


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    simulation = Simulation(tmp_path, monkeypatch)
    simulation.start()
    simulation.advance(10.0)
    yield simulation
    simulation.close()


def has_started_but_does_not_serve(service: Simulation, number: int) -> None:
    """Replace a worker by one that does not serve."""
    service.prepare = lambda _: None
    service.worker(number).exit(1)
    service.advance(0.1)


def test_every_worker_purges(service: Simulation) -> None:
    has_started_but_does_not_serve(service, 2)
    replies = service.ask("purge", all=True)["replies"]
    assert replies == [
        {"name": "worker 1", "pid": 101, "result": None},
        {"name": "worker 2", "pid": 104, "result": None},
    ]
    for worker in (service.worker(1), service.worker(2)):
        (asked,) = worker.received
        assert (asked["command"], asked["args"]) == ("purge", {"all": True})


def test_one_worker_that_serves_explains(service: Simulation) -> None:
    has_started_but_does_not_serve(service, 1)
    reply = service.ask("explain", input="@alice")
    assert reply["replies"] == [{"name": "worker 2", "pid": 102, "result": None}]
    assert reply["overview"] is None
    assert service.admin.operations == []


def test_only_the_first_worker_explains(service: Simulation) -> None:
    assert [each["name"] for each in service.ask("explain")["replies"]] == ["worker 1"]


def test_command_without_a_worker_is_replied_to_at_once(service: Simulation) -> None:
    for number in (1, 2):
        has_started_but_does_not_serve(service, number)
    assert service.ask("explain")["replies"] == []
    reply = service.ask("report")
    assert reply["replies"] == []
    assert reply["overview"]["phase"] == "starting"
    assert reply["overview"]["missing"] == ["worker 1", "worker 2"]


@pytest.mark.parametrize(
    ("command", "seconds"),
    [("purge", 5.0), ("explain", 5.0), ("report", 0.5)],
)
def test_worker_that_does_not_reply_is_not_waited_for(
    service: Simulation, command: str, seconds: float
) -> None:
    service.worker().ignored = {command}
    service.admin.send("ask", id=7, command=command, args={})
    service.advance(seconds - 0.01)
    assert service.admin.received == []
    service.advance(0.02)
    (reply,) = service.admin.received
    assert {"name": "worker 1", "pid": 101, "error": "no reply in time"} in reply["replies"]


def test_worker_that_ends_is_not_waited_for(service: Simulation) -> None:
    service.worker().ignored = {"purge"}
    service.admin.send("ask", id=7, command="purge", args={})
    service.advance(0.1)
    service.worker().exit(1)
    service.advance(0.1)
    (reply,) = service.admin.received
    assert {"name": "worker 1", "pid": 101, "ended": True} in reply["replies"]


def test_overview_has_what_the_workers_reported(service: Simulation) -> None:
    has_started_but_does_not_serve(service, 1)
    overview = service.overview()
    first, second = overview.pop("workers")
    assert overview.pop("started_at") == pytest.approx(service.counters.started_at)
    assert overview.pop("ended") == service.counters.to_record()
    assert overview == {
        "phase": "ready",
        "pid": os.getpid(),
        "restarts": 1,
        "missing": ["worker 1"],
        "loaded_at": service.counters.last_reload_success,
        "last_reload": None,
    }
    assert (first["name"], first["phase"], first["report"]) == ("worker 1", "starting", None)
    assert (second["name"], second["pid"], second["phase"]) == ("worker 2", 102, "ready")
    assert second["report"]["counters"] == service.worker(2).counters.to_record()


def test_counts_of_a_worker_that_ends_before_it_replies_are_reported_once(
    service: Simulation,
) -> None:
    """As those of a worker that has ended, and no more as its own."""
    worker = service.worker()
    worker.ignored = {"report"}
    worker.counters.count_reload(succeeded=True, at=1.0)
    worker.report()
    service.admin.send("ask", id=7, command="report", args={})
    service.advance(0.1)
    worker.exit(1)
    service.advance(0.1)
    (reply,) = service.admin.received
    assert reply["overview"]["ended"]["reloads"]["ok"] == 1
    assert worker.pid not in [each["pid"] for each in reply["overview"]["workers"]]


def test_overview_has_the_age_of_the_heartbeats(service: Simulation) -> None:
    service.worker().is_hung = True
    service.advance(2.0)
    service.admin.send("ask", id=7, command="report", args={})
    service.advance(0.49)
    assert service.admin.received == []
    service.advance(0.02)
    first, second = service.admin.received[0]["overview"]["workers"]
    assert 2.5 <= first["heartbeat_age"] <= 3.0
    assert second["heartbeat_age"] < 1.0


def test_reload_is_replied_to_once_it_is_effective(service: Simulation) -> None:
    service.path.write_text(CONFIG.replace("profiles", "other"))
    result = service.ask("reload", key="operator", client="127.0.0.1")["result"]
    assert (result["code"], result["needs_restart"]) == (None, [])
    assert service.worker().operations == ["prepare", "commit"]
    assert service.overview()["last_reload"]["at"] == result["at"]


def test_reload_with_an_invalid_file_is_replied_to_with_its_problems(service: Simulation) -> None:
    service.path.write_text(CONFIG + "no_such: 1\n")
    result = service.ask("reload")["result"]
    assert result["code"] == "invalid_configuration"
    assert "no_such" in result["problems"][0]
    assert service.worker().operations == []


def test_new_admin_process_serves_after_the_first_has_ended(service: Simulation) -> None:
    """What it had asked for is replied to nowhere."""
    service.worker().ignored = {"purge"}
    service.admin.send("ask", id=7, command="purge", args={})
    service.advance(0.1)
    service.admin.exit(1)
    service.advance(0.1)
    service.worker().reply()
    service.advance(0.1)
    assert service.admin.received == []
    service.worker().ignored = set()
    assert len(service.ask("purge")["replies"]) == 2
