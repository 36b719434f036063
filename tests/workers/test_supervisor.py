"""The supervisor in states that are rare: its processes and the time are simulated.

`test_workers.py` has the same with real processes.
"""

import errno
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from support.processes.supervision import FakeProcess, Simulation, never_serve
from tornado_idv.errors import StartError


def fail(process: FakeProcess, message: str = "cannot open users.yaml") -> None:
    """Report that it cannot start, and end."""
    process.update(error=f"{process.name}: {message}")
    process.exit(3)


# Start


def test_service_is_announced_once_when_all_processes_serve(simulation: Simulation) -> None:
    simulation.prepare = never_serve
    simulation.advance(1.0)
    for keys, process in enumerate(simulation.processes):
        assert simulation.announced == []
        process.serve(keys)
        simulation.advance(0.1)
    assert simulation.announced == [2]
    assert simulation.events.sent == ["ready"]
    simulation.worker().exit(1)
    simulation.advance(10.0)
    assert simulation.announced == [2]


def test_start_fails_with_the_error_of_a_worker_if_none_can_start(simulation: Simulation) -> None:
    def prepare(process: FakeProcess) -> None:
        process.serve() if process.name == "manager" else fail(process)

    simulation.prepare = prepare
    with pytest.raises(StartError, match=r"^worker 1: cannot open users\.yaml$"):
        simulation.run()
    assert simulation.manager.signals == [signal.SIGKILL]


@pytest.mark.parametrize("name", ["worker 2", "manager"])
def test_service_waits_for_one_process_that_cannot_start_yet(
    simulation: Simulation, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    simulation.prepare = lambda each: fail(each) if each.name == name else each.serve()
    simulation.advance(5.0)
    assert simulation.announced == []
    assert len(simulation.of(name)) == 5, "after 0, 0, 0.5, 1.5 and 3.5 s"
    assert len(simulation.processes) == 7
    assert f"{name} (pid 10" in caplog.text
    assert f"exit code 3 ({name}: cannot open users.yaml); restart in 0.5 s" in caplog.text
    simulation.prepare = FakeProcess.serve
    simulation.advance(10.0)
    assert simulation.announced == [1]


def test_worker_that_serves_after_a_failure_is_no_failed_start(simulation: Simulation) -> None:
    simulation.prepare = lambda each: fail(each) if each.name == "worker 1" else None
    simulation.advance(0.1)
    simulation.prepare = FakeProcess.serve
    simulation.advance(5.0)
    fail(simulation.worker(2))
    simulation.prepare = never_serve
    simulation.advance(1.0)
    simulation.manager.serve()
    simulation.worker(2).serve()
    simulation.advance(1.0)
    assert simulation.announced == [1]


def test_process_that_cannot_be_forked_is_tried_again_after_a_second(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    simulation.fork_error = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    simulation.advance(0.9)
    assert caplog.messages == [
        f"{name} cannot be started: Resource temporarily unavailable"
        for name in ("worker 1", "worker 2", "manager")
    ]
    simulation.fork_error = None
    simulation.advance(0.05)
    assert simulation.processes == []
    simulation.advance(0.1)
    assert [each.name for each in simulation.processes] == ["worker 1", "worker 2", "manager"]


def test_hangup_during_the_start_is_passed_on_once_the_service_is_announced(
    simulation: Simulation,
) -> None:
    simulation.prepare = never_serve
    simulation.advance(1.0)
    signal.raise_signal(signal.SIGHUP)
    simulation.worker().ignored = {"drain"}  # a process that is replaced, and has not ended yet
    simulation.worker().update(retiring=True)
    simulation.advance(1.0)
    for process in simulation.processes[1:]:
        assert process.received == []
        process.serve()
    simulation.advance(1.0)
    assert [each.operations for each in simulation.processes] == [["drain"], [], ["hangup"], []]


# Heartbeats


@pytest.mark.parametrize("name", ["worker 1", "manager"])
def test_process_without_a_heartbeat_for_three_seconds_is_replaced(
    service: Simulation, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (hung,) = service.of(name)
    hung.is_hung = True
    service.advance(1.9)
    assert not hung.has_ended
    service.advance(1.2)
    assert hung.has_ended
    assert [each.has_ended for each in service.of(name)] == [True, False]
    assert f"{name} (pid {hung.pid}) is killed: no heartbeat for 3 s" in caplog.messages
    assert len(service.processes) == 4


def test_process_that_starts_may_be_silent_for_a_minute(simulation: Simulation) -> None:
    """A backend that it opens may block its event loop."""
    simulation.prepare = lambda each: setattr(each, "is_hung", True)
    simulation.advance(59.9)
    assert len(simulation.processes) == 3
    with pytest.raises(StartError, match=r"worker 1 .* ended during the start: SIGKILL"):
        simulation.advance(0.2)


def test_killed_process_that_does_not_end_is_killed_again(service: Simulation) -> None:
    """As one that waits for a disk; meanwhile it has no successor."""
    hung = service.worker()
    hung.is_hung = hung.is_unkillable = True
    service.advance(12.5)
    assert hung.signals == [signal.SIGKILL]
    assert service.overview()["workers"][0]["heartbeat_age"] == 0.0
    service.advance(1.0)
    assert hung.signals == [signal.SIGKILL] * 2
    assert len(service.processes) == 3


@pytest.mark.parametrize("seconds", [2.6, 3600.0])
def test_processes_live_on_after_machine_was_suspended(service: Simulation, seconds: float) -> None:
    """They have sent nothing meanwhile; one that hangs afterwards is replaced."""
    service.advance(0.9)
    service.pause(seconds)
    assert not any(each.has_ended for each in service.processes)
    service.worker().is_hung = True
    service.advance(2.9)
    assert not service.worker().has_ended
    service.advance(0.2)
    assert [each.name for each in service.processes if each.has_ended] == ["worker 1"]


def test_late_supervisor_still_replaces_what_hangs(service: Simulation) -> None:
    """A machine that is only busy is no suspended one."""
    hung = service.worker()
    hung.is_hung = True
    for _ in range(2):
        service.pause(1.9)
        service.advance(0.01)
    assert [each for each in service.processes if each.has_ended] == [hung]


@pytest.mark.parametrize("has_hung", [False, True], ids=["closed", "closed after it hung"])
def test_process_that_has_closed_its_connection_and_does_not_end_is_replaced(
    service: Simulation, caplog: pytest.LogCaptureFixture, *, has_hung: bool
) -> None:
    """It has ten seconds, for it closes its connection before it ends."""
    process = service.worker()
    process.is_hung = has_hung
    service.advance(2.0)
    process.disconnect()
    service.advance(9.9)
    assert not process.has_ended
    service.advance(0.2)
    assert process.has_ended
    assert f"{process.name} (pid {process.pid}) is killed: it did not stop in time" in caplog.text
    assert not service.worker().has_ended


# Replacement


def test_process_that_ends_is_replaced_and_its_counts_are_kept(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    process = service.worker()
    process.counters.reloads["ok"] += 1
    process.report()
    process.exit(1)
    service.advance(0.1)
    overview = service.overview()
    assert overview["restarts"] == 1
    assert overview["ended"]["reloads"]["ok"] == 1
    assert [each["pid"] for each in overview["workers"]] == [104, 102]
    assert "worker 1 (pid 101) ended: exit code 1; restart in 0 s" in caplog.messages
    assert len(service.processes) == 4


def test_report_sent_just_before_the_end_is_counted(service: Simulation) -> None:
    """Also one that is sent after the supervisor has read the connection."""
    process = service.worker()
    process.counters.reloads["failed"] += 1

    def end() -> None:
        process.before_reap = lambda: None
        process.report()
        process.exit(-signal.SIGSEGV)

    process.before_reap = end
    service.advance(0.01)
    assert service.counters.reloads["failed"] == 1


def test_failures_in_a_row_are_followed_by_growing_pauses(service: Simulation) -> None:
    failed = service.now
    service.prepare = lambda each: each.exit(1)
    service.worker().exit(1)
    service.advance(40.0)
    overview = service.overview()
    assert overview["missing"] == ["worker 1"]
    assert [each["name"] for each in overview["workers"]] == ["worker 2"]
    _, *successors = service.of("worker 1")
    starts = [round(each.started - failed, 3) for each in successors]
    assert starts == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5]
    service.prepare = FakeProcess.serve
    service.advance(6.0)
    served_briefly = service.worker()
    served_briefly.exit(1)
    service.advance(0.1)
    assert service.worker() is served_briefly, "as after one that never served"
    service.advance(12.0)
    service.worker().exit(1)
    service.advance(0.1)
    assert not service.worker().has_ended, "it is replaced at once after a second of service"


def test_terminated_worker_serves_until_its_successor_does(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    """`drain.delay` does not apply: the successor accepts connections."""
    caplog.set_level(logging.INFO)
    service.prepare = never_serve
    service.set_drain(delay=30.0, timeout=5.0)
    old = service.worker()
    old.ignored = {"drain"}
    old.update(retiring=True)
    service.advance(1.0)
    new = service.worker()
    assert new is not old
    assert old.received == []
    new.serve()
    service.advance(0.1)
    assert old.received == [{"op": "drain", "delay": False}]
    old.update(retiring=True)
    service.advance(14.8)
    assert not old.has_ended
    service.advance(0.2)
    assert old.signals == [signal.SIGKILL]
    service.advance(1.0)
    assert service.overview()["restarts"] == 0
    assert len(service.processes) == 4
    assert "worker 1 (pid 101) is replaced" in caplog.messages
    assert "worker 1 (pid 101) stopped: SIGKILL" in caplog.messages
    signal.raise_signal(signal.SIGTERM)
    assert service.run(), "the requests that it left do not count"


def test_worker_that_is_terminated_during_its_start_is_drained_at_once(service: Simulation) -> None:
    service.prepare = never_serve
    old = service.worker()
    old.update(retiring=True)
    service.advance(0.1)
    first = service.worker()
    first.ignored = {"drain"}
    first.update(retiring=True)
    service.advance(0.1)
    second = service.worker()
    drain = {"op": "drain", "delay": False}
    assert [each.received for each in (old, first, second)] == [[], [drain], []]
    first.serve()  # it did so before it was asked to stop
    service.advance(0.1)
    assert not old.has_ended
    second.serve()
    service.advance(0.1)
    assert old.has_ended
    assert not second.has_ended


def test_worker_that_ends_while_its_successor_starts_is_not_replaced_twice(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    service.prepare = never_serve
    old = service.worker()
    old.update(retiring=True)
    service.advance(0.1)
    old.exit(1)
    service.advance(5.0)
    assert len(service.processes) == 4
    assert f"worker 1 (pid {old.pid}) ended: exit code 1" in caplog.messages


def test_manager_stays_while_no_worker_can_be_started(service: Simulation) -> None:
    service.prepare = never_serve
    for number in (1, 2):
        service.worker(number).exit(1)
    service.advance(0.1)
    service.fork_error = OSError(errno.ENOMEM, "Cannot allocate memory")
    for number in (1, 2):
        service.worker(number).update(retiring=True)
    service.advance(5.0)
    overview = service.overview()
    assert (overview["phase"], overview["workers"]) == ("starting", [])
    service.fork_error, service.prepare = None, FakeProcess.serve
    service.advance(2.0)
    assert service.overview()["missing"] == []


# Stop


def test_stop_drains_the_workers_and_then_the_manager(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    service.set_drain(delay=1.0, timeout=1.0)
    for process in service.processes:
        process.ignored = {"drain"}
    caplog.set_level(logging.INFO)
    signal.raise_signal(signal.SIGTERM)
    service.advance(0.1)
    text = "stopping: no new connections, finishing the requests in flight"
    assert caplog.messages == [text]
    first, second = service.worker(1), service.worker(2)
    assert (service.released, service.events.sent[-1]) == (["sockets"], "stopping")
    assert first.received == second.received == [{"op": "drain", "delay": True}]
    first.exit()
    service.advance(1.0)
    assert service.manager.operations == ["stopping"]
    assert service.overview()["phase"] == "draining"
    second.exit()
    service.manager.ignored = set()
    assert service.run()
    assert service.manager.operations == ["stopping", "drain"]
    assert len(service.processes) == 3
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("codes", [(1, 0), (0, 1)], ids=["the first", "the last"])
def test_stop_with_requests_left_in_one_worker_is_reported(
    service: Simulation, codes: tuple[int, int]
) -> None:
    for process in service.processes[:2]:
        process.ignored = {"drain"}
    signal.raise_signal(signal.SIGINT)
    service.advance(0.1)
    for process, code in zip(service.processes[:2], codes, strict=True):
        process.exit(code)
        service.advance(0.1)
    assert not service.run()


def test_worker_that_does_not_stop_is_killed_ten_seconds_after_its_time(
    service: Simulation,
) -> None:
    service.set_drain(delay=60.0, timeout=15.0)
    service.worker().ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    service.advance(84.9)
    assert not service.worker().has_ended
    assert not service.manager.has_ended
    service.advance(0.2)
    assert service.worker().has_ended
    assert not service.run()


def test_worker_that_ends_by_itself_during_the_stop_is_not_replaced(service: Simulation) -> None:
    service.worker().ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    service.manager.exit(1)  # it had not been asked to stop
    service.advance(5.0)
    assert len(service.processes) == 3
    service.worker().exit()
    assert service.run()


def test_stop_during_the_start_ends_all_processes(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulation.prepare = never_serve
    simulation.advance(1.0)
    simulation.processes[0].update(retiring=True)
    late = simulation.processes[1]
    late.serve()  # before it gets the message that it is to stop
    for each in simulation.processes:
        each.ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    simulation.advance(1.0)
    assert [each.operations for each in simulation.processes] == [["drain"]] * 2 + [["stopping"]]
    simulation.manager.exit(1)
    simulation.advance(1.0)
    simulation.worker(1).update(error="x")  # no error of the start
    simulation.worker(1).exit()
    fail(late)
    assert not simulation.run()
    assert [each.code for each in simulation.processes] == [0, 3, 1]
    assert simulation.announced == []
    assert "restart in" not in caplog.text
    assert "stopped during the start" in caplog.messages
    assert "is replaced" not in caplog.text


def test_stop_starts_no_process_that_is_missing(service: Simulation) -> None:
    """And the manager stops at once where no worker is there."""
    service.prepare = lambda each: each.exit(1)
    for number in (1, 2):
        service.worker(number).exit(1)
    service.advance(2.0)
    count = len(service.processes)
    service.manager.ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    service.advance(5.0)
    service.manager.exit()
    assert service.run()
    assert service.manager.operations == ["stopping", "drain"]
    assert len(service.processes) == count


def test_stop_gives_no_more_time_to_a_worker_that_drains_already(service: Simulation) -> None:
    old = service.worker()
    old.ignored = {"drain"}
    old.update(retiring=True)
    service.advance(20.0)
    service.worker(2).ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    service.advance(5.1)
    assert old.received == [{"op": "drain", "delay": False}]
    assert old.has_ended
    assert not service.worker(2).has_ended
    service.worker(2).exit()
    service.run()


def test_second_signal_kills_all_processes(
    service: Simulation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[list[int]] = []

    def exit_at_once(code: int) -> None:
        killed.extend([*each.signals] for each in service.processes)
        sys.exit(code)

    monkeypatch.setattr(os, "_exit", exit_at_once)
    service.worker(1).ignored = service.worker(2).ignored = {"drain"}
    signal.raise_signal(signal.SIGTERM)
    service.advance(1.0)
    caplog.set_level(logging.INFO)
    caplog.clear()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit, match=r"^130$"):
        service.run()
    aborted, stopped = caplog.records
    assert aborted.message == "second signal: exiting now, requests in flight are aborted"
    assert (stopped.name, stopped.message) == ("tornado_idv.audit", "stopped")
    assert stopped.__dict__["drained"] is False
    assert killed == [[signal.SIGKILL]] * 3


# The overview


def test_overview_has_what_the_workers_reported(service: Simulation) -> None:
    service.prepare = never_serve
    service.worker(1).exit(1)
    service.advance(0.1)
    service.advance(0.5)
    service.worker(2).update(address="x" * 50_000)  # unread when the manager asks for the overview
    overview = service.overview()
    first, second = overview.pop("workers")
    assert overview.pop("started_at") == pytest.approx(service.counters.started_at)
    assert overview.pop("ended") == service.counters.to_record()
    assert overview == {
        "op": "reply",
        "phase": "ready",
        "pid": os.getpid(),
        "restarts": 1,
        "missing": ["worker 1"],
        "loaded_at": service.counters.last_reload_success,
        "last_reload": None,
    }
    assert (first["name"], first["phase"], first["report"]) == ("worker 1", "starting", None)
    assert (second["name"], second["pid"], second["phase"]) == ("worker 2", 102, "ready")
    assert (second["address"], second["requests"]) == ("x" * 50_000, 0)
    assert first["heartbeat_age"] == pytest.approx(0.6, abs=0.01)
    assert second["heartbeat_age"] < 0.01
    assert second["report"]["counters"] == service.worker(2).counters.to_record()


def test_service_manager_gets_a_sign_of_life_twice_per_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation(tmp_path, monkeypatch, interval=0.4)
    simulation.advance(1.9)
    assert simulation.events.sent == ["ready", *["alive"] * 5]
    simulation.close()
