"""The part of the supervisor in a reload; its processes and the time are simulated."""

import signal

import pytest

from support.processes.supervision import CONFIG, FakeProcess, Simulation, never_serve
from tornado_idv.admin.report import ReloadResult
from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.service.reload import Reloader

OTHER = f"{CONFIG.replace('profiles', 'other')}limits: {{requests: 1/hour}}\n"


def site(service: Simulation) -> str:
    """The profile site of a process that is started now."""
    return service.current.settings.profile_sites[0]


def commit(*processes: FakeProcess) -> None:
    """Report that the second configuration is in force."""
    for each in processes:
        each.update(generation=1)


def test_configuration_that_all_have_committed_replaces_no_process(service: Simulation) -> None:
    assert service.use(OTHER)["generation"] == 1
    assert site(service) == "https://other.example"
    assert service.current.limiters.keys.of(ApiKey("caller", b""))
    service.advance(60.0)
    commit(*service.processes)
    service.end_reload(ReloadResult(5.0))
    service.advance(10.0)
    assert len(service.processes) == 3
    assert service.events.sent == ["ready", "reloading", "ready"]
    assert service.overview()["last_reload"]["at"] == service.overview()["loaded_at"] == 5.0
    assert service.counters.reloads == {"ok": 1, "failed": 0}


async def test_manager_that_starts_after_a_reload_follows_the_file(service: Simulation) -> None:
    path, applied = service.current.file.path, []

    async def apply(file: ConfigFile) -> ReloadResult:
        applied.append(file.content)
        return ReloadResult()

    (digest := path.with_name("digest")).write_text("0" * 64)
    service.use(f"{OTHER}auth: {{keys: [{{id: a, sha256: '${{file:digest}}'}}]}}\n")
    reloader = Reloader(service.current.file, apply, lambda _: None, lambda *_: None)
    for file, text in ((digest, "1" * 64), (path, OTHER)):
        file.write_text(text)
        for _ in range(3):
            await reloader.poll()
    assert applied == [CONFIG.encode(), OTHER.encode()]


def test_commit_that_is_sent_just_before_the_end_of_the_reload_is_seen(service: Simulation) -> None:
    service.use(OTHER)
    late = service.worker(1)

    def commit_late() -> None:
        late.before_reap = lambda: None
        commit(late)
        service.manager.send("reloaded", result=ReloadResult(5.0))

    late.before_reap = commit_late
    commit(service.worker(2), service.manager)
    service.advance(10.0)
    assert service.counters.reloads == {"ok": 1, "failed": 0}
    assert len(service.processes) == 3


def test_worker_that_has_not_committed_is_replaced_after_the_reload(service: Simulation) -> None:
    """It serves until its successor does, which has the new configuration."""
    old = service.worker(1)
    old.ignored = {"drain"}
    service.use(OTHER)
    commit(service.worker(2), service.manager)
    service.prepare = never_serve
    service.end_reload(ReloadResult(5.0))
    new = service.worker(1)
    assert new is not old
    assert old.received == []
    new.serve()
    service.advance(1.0)
    assert old.operations == ["drain"]
    assert len(service.processes) == 4


def test_worker_that_starts_with_the_old_configuration_is_replaced_before_it_serves(
    service: Simulation,
) -> None:
    service.prepare = never_serve
    service.worker(1).exit(1)
    service.advance(0.1)
    old = service.worker(1)
    old.is_unprepared = True
    assert service.use(OTHER)["generation"] == 1
    service.advance(0.1)
    assert old.operations == ["drain"]
    service.worker(1).serve()
    commit(service.worker(2), service.manager)
    service.end_reload(ReloadResult(5.0))
    service.advance(10.0)
    assert service.overview()["missing"] == []
    assert [each.name for each in service.processes[3:]] == ["worker 1"] * 2


def test_configuration_is_refused_that_a_worker_has_not_prepared(service: Simulation) -> None:
    """It has just begun to serve."""
    service.prepare = never_serve
    service.worker(1).exit(1)
    service.advance(0.1)
    service.worker(1).is_unprepared = True
    service.worker(1).serve()  # unread when the manager asks
    assert service.use(OTHER) == {"op": "reply"}
    assert site(service) == "https://profiles.example"
    service.worker(1).is_unprepared = False
    assert service.use(OTHER)["generation"] == 1


def test_failed_reload_replaces_no_process(service: Simulation) -> None:
    service.manager.send("reloading", audited={"trigger": "admin"})
    service.end_reload(ReloadResult(5.0, code="reload_failed", problems=("no file",)))
    service.advance(10.0)
    assert (len(service.processes), site(service)) == (3, "https://profiles.example")
    assert service.counters.reloads == {"ok": 0, "failed": 1}
    assert service.events.sent == ["ready", "reloading", "ready"]


def test_content_that_is_invalid_by_now_is_not_used(service: Simulation) -> None:
    other_count = CONFIG.replace("workers: 2", "workers: 3")
    assert service.use(other_count)["result"]["needs_restart"] == ["server.workers"]
    reply = service.use(f"{CONFIG}no_such: 1\n")
    assert (reply["result"]["code"], reply["generation"]) == ("invalid_configuration", 1)
    assert site(service) == "https://profiles.example"


def test_manager_that_ends_before_the_commit_leaves_the_old_configuration(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    service.use(CONFIG)
    commit(*service.processes)
    service.end_reload(ReloadResult(5.0))
    old = service.manager
    old.send("reloading", audited={"trigger": "admin"})
    service.advance(0.1)
    old.exit(-signal.SIGKILL)
    service.advance(10.0)
    assert [each.name for each in service.processes[3:]] == ["manager"]
    assert site(service) == "https://profiles.example"
    assert service.counters.reloads == {"ok": 1, "failed": 1}
    assert service.overview()["last_reload"]["code"] == "reload_failed"
    assert f"manager (pid {old.pid}) ended during the reload" in caplog.text
    assert service.events.sent == ["ready", *["reloading", "ready"] * 2]


def test_manager_that_ends_in_the_commit_leaves_the_new_configuration(service: Simulation) -> None:
    """Workers that it has not reached are replaced."""
    service.use(OTHER)
    service.manager.before_reap = lambda: commit(service.worker(2))  # just before its end
    service.manager.exit(-signal.SIGKILL)
    service.advance(10.0)
    assert sorted(each.name for each in service.processes[3:]) == ["manager", "worker 1"]
    assert service.counters.reloads == {"ok": 1, "failed": 0}
    assert service.overview()["missing"] == []


def test_hangup_that_no_reload_has_begun_for_is_passed_on_to_the_next_manager(
    service: Simulation,
) -> None:
    signal.raise_signal(signal.SIGHUP)
    service.advance(0.1)
    assert service.manager.operations == ["hangup"]
    service.prepare = never_serve
    service.manager.exit(-signal.SIGKILL)
    service.advance(1.0)
    signal.raise_signal(signal.SIGHUP)
    service.advance(1.0)
    assert service.manager.operations == []
    service.manager.serve()
    service.advance(0.1)
    assert service.manager.operations == ["hangup"]
    service.manager.send("reloading", audited={"trigger": "signal"})
    service.end_reload(ReloadResult(5.0))
    service.prepare = FakeProcess.serve
    service.manager.exit(-signal.SIGKILL)
    service.advance(1.0)
    assert service.manager.operations == []


def test_worker_may_be_silent_for_a_minute_while_it_prepares(service: Simulation) -> None:
    process = service.worker()
    process.update(preparing=True)
    service.advance(0.1)
    process.is_hung = True
    service.advance(55.0)
    process.is_hung = False
    process.update(preparing=False)
    service.advance(0.1)
    process.is_hung = True
    service.advance(3.1)
    assert process.has_ended


def test_reload_that_a_stop_ends_has_failed(
    service: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    service.manager.send("reloading", audited={"trigger": "admin"})
    service.advance(0.1)
    signal.raise_signal(signal.SIGTERM)
    service.advance(0.1)
    assert service.manager.operations[0] == "stopping"
    assert service.run()
    assert service.counters.reloads == {"ok": 0, "failed": 1}
    assert "the service is stopping" in caplog.text
    assert service.events.sent[-2:] == ["reloading", "stopping"]


def test_reload_during_the_start_does_not_announce_the_service(simulation: Simulation) -> None:
    simulation.prepare = never_serve
    simulation.advance(0.1)
    simulation.manager.serve()
    simulation.manager.send("reloading", audited={"trigger": "watch"})
    simulation.end_reload(ReloadResult(5.0))
    assert "ready" not in simulation.events.sent
