"""The part of one process in a reload, as its supervisor commands it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.reload_result import FAILED, INVALID, ReloadResult
from tornado_idv.service.reload import Prepared
from tornado_idv.workers.channel import Message
from tornado_idv.workers.reload_all import PreparedReload

CONFIG = """\
profile_sites: [https://{}.example]
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""


class Harness:
    """A process with the configuration A, whose preparations wait for a gate.

    ``done`` has what became of configurations, ``sent`` the messages to the supervisor.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "config.yaml").write_text(CONFIG.format("a"))
        self.done: list[str] = []
        self.sent: list[Message] = []
        self.prepared: list[str] = []
        self.begun = asyncio.Event()
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        file = ConfigFile.read(folder / "config.yaml")
        kinds = installed_kinds(plugin_manager())
        self._reload = PreparedReload(file, kinds, self._prepare, self.sent.append)

    async def _prepare(self, settings: Settings) -> Prepared:
        text = settings.profile_sites[0].removeprefix("https://").removesuffix(".example").upper()
        self.prepared.append(text)
        self.begun.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error

        async def abort() -> None:
            self.done.append(f"abort {text}")

        return Prepared(lambda: self.done.append(f"commit {text}"), abort)

    async def prepare(self, text: str) -> ReloadResult | None:
        return await self.do("prepare", {"content": CONFIG.format(text.lower())})

    async def do(self, command: str, args: Message | None = None) -> ReloadResult | None:
        return await self._reload.execute(command, args or {})

    def start(self, text: str) -> asyncio.Task[ReloadResult | None]:
        self.gate.clear()
        return asyncio.create_task(self.prepare(text))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


async def test_content_is_that_of_the_supervisor(harness: Harness) -> None:
    """The file may have changed since, and every process is to have the same configuration."""
    assert await harness.prepare("B") is None
    assert harness.prepared == ["B"]


async def test_prepared_configuration_is_put_in_force_once(harness: Harness) -> None:
    await harness.prepare("B")
    assert harness.done == []
    assert await harness.do("commit") is None
    assert await harness.do("commit") is None
    assert await harness.do("abort") is None
    assert harness.done == ["commit B"]


async def test_aborted_configuration_is_closed_and_never_put_in_force(harness: Harness) -> None:
    await harness.prepare("B")
    await harness.do("abort")
    await harness.do("commit")
    assert harness.done == ["abort B"]
    assert harness.prepared == ["B"]


async def test_configuration_that_another_replaces_is_closed(harness: Harness) -> None:
    await harness.prepare("B")
    await harness.prepare("C")
    assert harness.done == ["abort B"]
    await harness.do("commit")
    assert harness.done == ["abort B", "commit C"]


async def test_configuration_that_is_prepared_after_its_abort_is_closed(harness: Harness) -> None:
    late = harness.start("B")
    await asyncio.sleep(0)
    abort = asyncio.create_task(harness.do("abort"))
    await asyncio.sleep(0)
    harness.gate.set()
    assert await late is None
    await abort
    assert harness.done == ["abort B"]
    await harness.do("commit")
    assert harness.done == ["abort B"]


async def test_configuration_that_is_prepared_after_the_next_one_is_closed(
    harness: Harness,
) -> None:
    late = harness.start("B")
    await asyncio.sleep(0)
    next_one = asyncio.create_task(harness.prepare("C"))
    await asyncio.sleep(0)
    harness.gate.set()
    await late
    await next_one
    await harness.do("commit")
    assert harness.done == ["abort B", "commit C"]


@pytest.mark.parametrize(
    ("error", "code", "problem"),
    [
        (ConfigError(Problem("c.yaml", 2, 3, "a.b", "wrong")), INVALID, "c.yaml:2:3: a.b: wrong"),
        (StartError("no file"), FAILED, "no file"),
        (KeyError("canary"), FAILED, "unhandled exception: KeyError"),
    ],
    ids=["configuration", "start", "unexpected"],
)
async def test_problems_are_returned(
    harness: Harness, error: Exception, code: str, problem: str
) -> None:
    harness.error = error
    result = await harness.prepare("B")
    assert result is not None
    assert (result.code, result.problems) == (code, (problem,))
    await harness.do("commit")
    assert harness.done == []


async def test_configuration_that_does_not_open_in_two_minutes_fails(harness: Harness) -> None:
    clock = LoopClock()
    late = harness.start("B")
    await harness.begun.wait()
    await clock.advance(119.0)
    assert not late.done()
    await clock.advance(2.0)
    result = await late
    assert result is not None
    assert result.code == FAILED
    assert result.problems == ("not everything could be opened within 120 s",)


async def test_opening_is_reported_until_its_end(harness: Harness) -> None:
    """Since it may block the event loop, the supervisor waits longer for a heartbeat then."""
    task = harness.start("B")
    await harness.begun.wait()
    assert harness.sent == [{"op": "preparing", "now": True}]
    harness.error = StartError("no file")
    harness.gate.set()
    await task
    assert harness.sent[1:] == [{"op": "preparing", "now": False}]
