"""Reloads come one after the other, each one is reported, and a watched file is left to rest."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from support.fakes.clock_and_backends import LoopClock
from tornado_idv.admin.report import FAILED, INVALID, ReloadResult
from tornado_idv.config import load
from tornado_idv.config.kinds import settings_type
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.part import Prepared
from tornado_idv.service.reload import Audited, Reloader, applicable, prepare_file, record
from tornado_idv.service.sockets import SocketFiles


class Applied:
    """Records the contents that are applied, one at a time; each waits for the gate."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self, file: ConfigFile) -> ReloadResult:
        self.begun.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.contents.append(file.content)
        return ReloadResult(1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("1")
    return path


Apply = Callable[[ConfigFile], Awaitable[ReloadResult]]


@pytest.fixture
def applied() -> Applied:
    return Applied()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def reloader(path: Path, applied: Applied, counters: Counters) -> Reloader:
    return reloader_of(path, applied, counters)


def reloader_of(path: Path, apply: Apply, counters: Counters) -> Reloader:
    """Return a reloader as a service of one process has it."""

    def end(result: ReloadResult, audited: Audited) -> None:
        record(result, counters, audited)

    return Reloader(ConfigFile.read(path), apply, lambda _: None, end)


async def test_request_during_a_reload_causes_one_other_afterwards(
    path: Path, reloader: Reloader, applied: Applied
) -> None:
    """However many there are: the file may have changed after it was read."""
    applied.gate.clear()
    first = reloader.start("signal")
    await applied.begun.wait()
    path.write_text("2")
    others = [reloader.start("signal") for _ in range(5)]
    applied.gate.set()
    assert (await first).code is None
    for other in others:
        assert (await other).code is None
    assert applied.contents == [b"1", b"2"]


SETTINGS = settings_type(Kinds()).model_construct(profile_sites=(), backends=())
NEED_A_RESTART = {
    *("server.host", "server.port", "server.listen", "server.workers", "server.tls"),
    *("logging.level", "logging.format", "logging.ids"),
    *("admin", "shared_cache", "demo"),
}


def changed_settings(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield the path of each setting, and the settings with another value there alone."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            for path, inner in changed_settings(value, f"{prefix}{name}."):
                yield path, settings.model_copy(update={name: inner})
        else:
            yield f"{prefix}{name}", settings.model_copy(update={name: object()})


CHANGED_SETTINGS = dict(changed_settings(SETTINGS))


@pytest.mark.parametrize("path", CHANGED_SETTINGS)
def test_reload_applies_every_setting_that_needs_no_restart(path: str) -> None:
    changed = CHANGED_SETTINGS[path]
    applied, needs_restart = applicable(SETTINGS, changed)
    assert needs_restart == ((path,) if path in NEED_A_RESTART else ())
    assert applied == (SETTINGS if path in NEED_A_RESTART else changed)
    kinds = SETTINGS.server, SETTINGS.cache  # a section may be of another kind
    one, other = (SETTINGS.model_copy(update={"shared_cache": each}) for each in kinds)
    assert applicable(one, other) == (one, ("shared_cache",))


@pytest.mark.parametrize(
    ("error", "code", "problem"),
    [
        (ConfigError(Problem("c.yaml", 2, 3, "a.b", "wrong")), INVALID, "c.yaml:2:3: a.b: wrong"),
        (StartError("no file"), FAILED, "no file"),
        (KeyError("canary"), FAILED, "unhandled exception: KeyError"),
    ],
    ids=["configuration", "start", "unexpected"],
)
async def test_failure_is_counted_logged_and_audited(
    reloader: Reloader,
    applied: Applied,
    counters: Counters,
    caplog: pytest.LogCaptureFixture,
    *,
    error: Exception,
    code: str,
    problem: str,
) -> None:
    applied.error = error
    with caplog.at_level(logging.INFO):
        result = await reloader.reload("admin", client="::1", key=None)
    assert result == ReloadResult(result.at, code=code, problems=(problem,)) == reloader.last
    assert counters.reloads == {"ok": 0, "failed": 1}
    assert counters.last_reload_success == counters.started_at
    assert f"the old one stays in force:\n{problem}" in caplog.text
    line = vars(caplog.records[-1])
    assert (line["name"], line["msg"]) == ("tornado_idv.audit", "reloaded")
    assert line["result"] == "failed"
    assert (line["trigger"], line["client"], line["problem"]) == ("admin", "::1", problem)
    assert "canary" not in caplog.text
    applied.error = None
    assert (await reloader.reload("admin")).code is None
    assert counters.reloads == {"ok": 1, "failed": 1}
    assert counters.last_reload_success == 1000.0


async def test_close_waits_for_the_end_of_a_reload(path: Path) -> None:
    """What it has opened is closed before the service ends."""
    done: list[str] = []
    begun = asyncio.Event()

    async def apply(_: ConfigFile) -> ReloadResult:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("closed")
        return ReloadResult(0.0)

    reloader = reloader_of(path, apply, Counters())
    reload = asyncio.create_task(reloader.reload("signal"))
    await begun.wait()
    await reloader.close()
    assert done == ["closed"]
    for task in (reload, reloader.reload("admin")):  # the second begins after the stop
        assert (await task).problems == ("the service is stopping",)
    assert done == ["closed"]


async def test_backends_that_do_not_open_and_files_that_hang_end_the_reload(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(
        "profile_sites: [https://a.example]\n"
        "backends: [{name: users, kind: yaml, path: users.yaml}]\n"
    )
    clock, begun = LoopClock(), asyncio.Event()

    async def prepare(_: Settings) -> Prepared:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def apply(file: ConfigFile) -> ReloadResult:
        await prepare_file(file, installed_kinds(plugin_manager()), prepare)
        raise AssertionError

    loop, gate = asyncio.get_running_loop(), threading.Event()

    def read(_: Path) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(10)

    reloader = reloader_of(path, apply, Counters())
    for _ in range(2):
        task = reloader.start("signal")
        await begun.wait()
        clock.forward(121)
        assert (await task).problems == ("a file, backend or key store did not open in 120 s",)
        begun.clear()
        monkeypatch.setattr(ConfigFile, "read", read)
    gate.set()


async def test_watched_file_is_reloaded_once_when_it_rests(
    path: Path, reloader: Reloader, applied: Applied
) -> None:
    for _ in range(3):
        await reloader.poll()
    assert applied.contents == []
    for number in range(3):
        path.write_text(f"writing {number}")
        await reloader.poll()
    assert applied.contents == []
    for _ in range(3):
        await reloader.poll()
    assert applied.contents == [b"writing 2"]
    path.write_text("another")
    await reloader.poll()
    await reloader.reload("signal")
    for _ in range(3):
        await reloader.poll()
    assert applied.contents == [b"writing 2", b"another"]


async def test_rejected_edit_is_reported_once(
    path: Path, reloader: Reloader, applied: Applied, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a file that is gone; the next edit is applied."""
    path.unlink()
    for _ in range(4):
        await reloader.poll()
    assert caplog.text.count("configuration not reloaded") == 1
    path.write_text("new")
    for _ in range(4):
        await reloader.poll()
    assert applied.contents == [b"new"]


async def test_files_are_followed_only_while_that_is_enabled(
    reloader: Reloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, files, asked, polled, checked = LoopClock(), SocketFiles(), [], [], []

    def is_enabled() -> bool:
        asked.append(clock())
        return len(asked) > 5

    async def poll() -> None:
        polled.append(clock())

    monkeypatch.setattr(reloader, "poll", poll)
    monkeypatch.setattr(files, "check", lambda: checked.append(clock()))
    watching = asyncio.create_task(reloader.watch(files, is_enabled))
    await asyncio.sleep(0)
    for _ in range(7):
        await clock.advance(1.1)
    reloader.stop()  # afterwards, the files of sockets may be those of another service
    await clock.advance(1.1)
    assert (len(asked), len(polled), len(checked)) == (8, 3, 7)
    watching.cancel()


async def test_change_while_the_file_is_read_is_noticed_by_the_watch(
    path: Path, applied: Applied, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares the file with its state before it was read, at the start or by a reload."""
    later = ["a later one", "another"]

    def read_and_change(path: Path) -> bytes:
        content = path.read_bytes()
        if later:
            path.write_text(later.pop())
        return content

    monkeypatch.setattr(load, "require_file", read_and_change)
    reloader = reloader_of(path, applied, counters)
    for _ in range(5):
        await reloader.poll()
    assert applied.contents == [b"another", b"a later one"]
