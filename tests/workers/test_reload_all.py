"""A reload of several processes: all of them prepare it, and then all or none put it in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.reload_result import FAILED, INVALID, ReloadResult
from tornado_idv.service.limiters import make_limiters
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.channel import Message
from tornado_idv.workers.child import Child
from tornado_idv.workers.fan_out import FanOut
from tornado_idv.workers.reload_all import Configuration, ReloadAll

CONFIG = """\
profile_sites: [https://profiles.example]
server: {workers: 2}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
OTHER = CONFIG.replace("profiles", "other") + "limits: {requests: 5/second}\n"


class Process:
    """A process whose replies a test gives."""

    def __init__(self, pid: int, phase: str = "ready") -> None:
        self.pid = pid
        self.name = f"worker {pid}"
        self.phase = phase
        self.preparing = self.outdated = False
        self.asked: list[Message] = []

    def send(self, message: Message) -> None:
        self.asked.append(message)

    @property
    def commands(self) -> list[str]:
        return [each["command"] for each in self.asked]


class Harness:
    """Two processes, and what reloads them."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.path = folder / "config.yaml"
        self.path.write_text(config)
        kinds = installed_kinds(plugin_manager())
        file = ConfigFile.read(self.path)
        self.current = Configuration(file, file.load(kinds, {}))
        self.processes = [Process(1), Process(2)]
        self.results: list[ReloadResult] = []
        self.counters = Counters()
        self.fan_out = FanOut(lambda: 0.0)
        self.limiters = make_limiters(self.current.settings.limits, 1)
        self.fan_out.children = cast("list[Child]", self.processes)
        self.reloads = ReloadAll(
            self.fan_out,
            self.current,
            kinds,
            self.limiters,
            notifier=Notifier(),
            counters=self.counters,
        )

    @property
    def site(self) -> str:
        return self.current.settings.profile_sites[0]

    @property
    def rate(self) -> str | None:
        """The limit of requests in a process that is started now."""
        limits = self.limiters.keys.of(ApiKey("shop", bytes(32)))
        return limits.rates()["requests"] if limits is not None else None

    def start(self, text: str = OTHER) -> None:
        self.path.write_text(text)
        self.reloads.start("signal", self.results.append)

    def reply(self, *processes: Process, **outcome: Any) -> None:
        for each in processes:
            message = {"id": each.asked[-1]["id"], **(outcome or {"result": None})}
            self.fan_out.on_reply(each, message)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def test_configuration_is_in_force_once_all_have_prepared_it(harness: Harness) -> None:
    first, second = harness.processes
    harness.start()
    assert first.asked[0]["args"] == {"content": OTHER}
    harness.reply(first)
    assert (first.commands, harness.site) == (["prepare"], "https://profiles.example")
    harness.reply(second)
    assert first.commands == second.commands == ["prepare", "commit"]
    assert harness.site == "https://other.example"
    assert harness.results == []
    harness.reply(first, second)
    assert [each.code for each in harness.results] == [None]
    assert harness.counters.reloads == {"ok": 1, "failed": 0}


@pytest.mark.parametrize(
    ("outcome", "code", "problem"),
    [
        ({"result": {"at": 1.0, "code": INVALID, "problems": ["line 3"]}}, INVALID, "line 3"),
        ({"error": "OSError"}, FAILED, "worker 2 (pid 2): OSError"),
    ],
    ids=["its problems", "its error"],
)
def test_configuration_that_one_cannot_prepare_is_aborted(
    harness: Harness, outcome: Message, code: str, problem: str
) -> None:
    first, second = harness.processes
    harness.start()
    harness.reply(second, **outcome)
    harness.reply(first)
    assert first.commands == second.commands == ["prepare", "abort"]
    assert harness.site == "https://profiles.example"
    (result,) = harness.results
    assert (result.code, result.problems) == (code, (problem,))
    assert harness.reloads.last == result


def test_process_that_does_not_reply_in_time_fails_the_reload(harness: Harness) -> None:
    first, second = harness.processes
    second.preparing = True
    harness.start()
    harness.reply(first)
    harness.fan_out.expire(harness.fan_out.next_deadline)
    assert harness.results[0].problems == ("worker 2 (pid 2): no reply in time",)


def test_process_that_ends_while_it_prepares_fails_the_reload(harness: Harness) -> None:
    """The configuration may have ended it, and would end its successors."""
    first, second = harness.processes
    harness.start()
    second.preparing = True
    harness.fan_out.on_exit(second)
    harness.reply(first)
    assert first.commands == ["prepare", "abort"]
    problem = "worker 2 (pid 2): ended while it prepared the configuration"
    assert harness.results[0].problems == (problem,)
    assert harness.rate is None


@pytest.mark.parametrize("phase", ["starting", "ready"])
def test_process_that_ends_before_it_prepares_is_not_waited_for(
    harness: Harness, phase: str
) -> None:
    first, second = harness.processes
    second.phase = phase
    harness.start()
    harness.fan_out.on_exit(second)
    harness.reply(first)
    assert first.commands == ["prepare", "commit"]
    assert harness.rate == "5/second"


def test_process_that_does_not_commit_is_replaced(harness: Harness) -> None:
    first, second = harness.processes
    harness.start()
    harness.reply(first, second)
    harness.reply(first)
    harness.reply(second, error="KeyError")
    assert (first.outdated, second.outdated) == (False, True)
    assert [each.code for each in harness.results] == [None]


def test_process_that_was_started_meanwhile_is_replaced(harness: Harness) -> None:
    """It has the old configuration, and was not asked to prepare the new one."""
    first, second = harness.processes
    harness.start()
    harness.reply(second)
    late = Process(3, "starting")
    harness.processes[1] = late
    harness.reply(first)
    assert (first.outdated, late.outdated) == (False, True)


def test_process_that_serves_until_it_is_replaced_is_reloaded(harness: Harness) -> None:
    first, second = harness.processes
    harness.start()
    second.outdated = True
    harness.reply(first, second)
    assert first.commands == second.commands == ["prepare", "commit"]


def test_draining_process_is_neither_asked_nor_replaced(harness: Harness) -> None:
    first, second = harness.processes
    second.phase = "draining"
    harness.start()
    harness.reply(first)
    assert (second.commands, second.outdated) == ([], False)


def test_requests_during_a_reload_cause_one_other_afterwards(harness: Harness) -> None:
    harness.start()
    harness.start(CONFIG)
    harness.start(CONFIG)
    harness.reply(*harness.processes)
    harness.reply(*harness.processes)
    assert len(harness.results) == 1
    for _ in range(2):
        harness.reply(*harness.processes)
    assert [each.code for each in harness.results] == [None] * 3
    assert harness.counters.reloads["ok"] == 2
    assert harness.site == "https://profiles.example"


def test_invalid_file_is_sent_to_none(harness: Harness) -> None:
    harness.start(CONFIG + "no_such: 1\n")
    assert harness.results[0].code == INVALID
    assert harness.processes[0].asked == []


def test_stop_ends_a_reload_and_allows_no_other(harness: Harness) -> None:
    harness.start()
    harness.reloads.stop()
    harness.reply(*harness.processes)
    assert harness.processes[0].commands == ["prepare", "abort"]
    harness.start()
    assert [each.problems for each in harness.results] == [("the service is stopping",)] * 2
    assert harness.processes[0].commands == ["prepare", "abort"]
    assert harness.site == "https://profiles.example"


def test_process_that_ends_in_a_reload_that_is_stopped_is_not_its_cause(harness: Harness) -> None:
    harness.start()
    harness.reloads.stop()
    harness.processes[1].preparing = True
    harness.fan_out.on_exit(harness.processes[1])
    harness.reply(harness.processes[0])
    assert harness.results[0].problems == ("the service is stopping",)


TLS = "{workers: 2, tls: {cert_file: c.pem, key_file: k.pem}}"


@pytest.mark.parametrize(
    ("before", "after"), [("{workers: 2}", TLS), (TLS, "{workers: 2}")], ids=["on", "off"]
)
def test_process_that_starts_after_a_reload_has_the_settings_that_need_a_restart_from_before(
    tmp_path: Path, before: str, after: str
) -> None:
    """It listens on the same port as those that serve already."""
    harness = Harness(tmp_path, CONFIG.replace("{workers: 2}", before))
    tls = harness.current.settings.server.tls
    harness.start(OTHER.replace("{workers: 2}", after))
    for _ in ("prepare", "commit"):
        harness.reply(*harness.processes)
    assert harness.results[0].needs_restart == ("server.tls",)
    assert (harness.current.settings.server.tls, harness.site) == (tls, "https://other.example")


def test_process_that_starts_where_tls_is_off_after_a_restart_has_the_certificate_in_force(
    harness: Harness,
) -> None:
    """Not that of the start, which may be removed by now."""
    tls = TLS.replace("c.pem", "other.pem")
    harness = Harness(harness.path.parent, CONFIG.replace("{workers: 2}", TLS))
    for server in (tls, "{workers: 2}"):
        harness.start(OTHER.replace("{workers: 2}", server))
        for _ in ("prepare", "commit"):
            harness.reply(*harness.processes)
    assert [each.needs_restart for each in harness.results] == [(), ("server.tls",)]
    in_force = harness.current.settings.server.tls
    assert in_force is not None
    assert in_force.cert_file.name == "other.pem"


def test_watched_file_is_reloaded_once_it_rests(harness: Harness) -> None:
    harness.reloads.poll(0.0)
    harness.path.write_text(OTHER)
    harness.reloads.poll(1.0)
    harness.reloads.poll(2.0)
    assert harness.processes[0].asked == []  # it is not followed
    harness.current.settings = harness.current.settings.model_copy(
        update={"server": harness.current.settings.server.model_copy(update={"watch_config": True})}
    )
    harness.reloads.poll(3.0)
    harness.reloads.poll(3.5)
    assert harness.processes[0].asked == []
    harness.reloads.poll(4.0)
    assert harness.processes[0].commands == ["prepare"]


def test_change_while_the_file_is_read_is_noticed_by_the_watch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which compares the file with what it was before it was read."""
    watched = CONFIG.replace("workers: 2", "workers: 2, watch_config: true")
    read = ConfigFile.read

    def read_and_change(path: Path) -> ConfigFile:
        file = read(path)
        path.write_text(watched.replace("profiles", "later"))
        return file

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "read", read_and_change)
        harness.start(watched)
    for _ in range(2):
        harness.reply(*harness.processes)
    for now in (10.0, 11.0, 12.0):
        harness.reloads.poll(now)
    assert harness.processes[0].commands == ["prepare", "commit", "prepare"]
    assert "later" in harness.processes[0].asked[-1]["args"]["content"]
