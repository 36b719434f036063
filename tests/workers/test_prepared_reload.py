"""The part of one process in a reload, as its supervisor commands it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.admin.report import FAILED, INVALID
from tornado_idv.config.load import ConfigFile
from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.service.prepared import Prepared
from tornado_idv.workers.control import Message
from tornado_idv.workers.reload_all import PreparedReload


class Harness:
    """A process with the configuration A, whose preparations wait for a gate."""

    def __init__(self, folder: Path) -> None:
        (folder / "config.yaml").write_text("A")
        self.done: list[str] = []
        self.files: list[ConfigFile] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.file = ConfigFile.read(folder / "config.yaml")
        self._reload = PreparedReload(self.file, self._prepare)

    async def _prepare(self, file: ConfigFile) -> Prepared:
        self.files.append(file)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        text = file.content.decode()

        async def abort() -> None:
            self.done.append(f"abort {text}")

        return Prepared(lambda: self.done.append(f"commit {text}"), abort)

    async def prepare(self, text: str) -> Message | None:
        return await self.do("prepare", {"content": text})

    async def do(self, command: str, args: Message | None = None) -> Message | None:
        return await self._reload.execute(command, args or {})

    def start(self, text: str) -> asyncio.Task[Message | None]:
        self.gate.clear()
        return asyncio.create_task(self.prepare(text))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


async def test_content_is_that_of_the_supervisor(harness: Harness) -> None:
    """The file may have changed since, and every process is to have the same configuration."""
    assert await harness.prepare("B") is None
    (file,) = harness.files
    assert (file.content, file.path) == (b"B", harness.file.path)


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
    assert len(harness.files) == 1


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
    assert await harness.prepare("B") == {"code": code, "problems": (problem,)}
    await harness.do("commit")
    assert harness.done == []


async def test_configuration_that_does_not_open_in_two_minutes_fails(harness: Harness) -> None:
    clock = LoopClock()
    late = harness.start("B")
    await asyncio.sleep(0)
    await clock.advance(119.0)
    assert not late.done()
    await clock.advance(2.0)
    problems = ("not everything could be opened within 120 s",)
    assert await late == {"code": FAILED, "problems": problems}
