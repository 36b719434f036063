"""Snapshots of a directory in one process, whose clocks and file a test controls."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from support.fakes.clock_and_backends import LoopClock, Ticker
from support.fakes.directories import DOWN, QUERY, directory
from support.fakes.snapshots import Process, Source, settings_of
from support.processes.service import CONFIG, FIXTURE, serving_here
from tornado_idv.admin.operations import OperationFailed
from tornado_idv.errors import LookupFailed
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.shared import Purge
from tornado_idv.model import Answer, ByNickname, User
from tornado_idv.service import snapshots as module
from tornado_idv.service.snapshot_file import SnapshotFile
from tornado_idv.service.snapshots import scope_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.snapshot"


@pytest.fixture
def wall() -> Ticker:
    return Ticker()


async def test_stop_writes_and_a_failed_one_does_not(path: Path, wall: Ticker) -> None:
    process = Process(path, wall, Source())
    await process.directory.find(QUERY)
    with pytest.raises(ZeroDivisionError):
        async with process.snapshots.kept():
            raise ZeroDivisionError
    assert not path.exists()
    await process.stop()
    assert path.exists()


async def test_is_written_every_interval_and_soon_after_it_was_removed(
    path: Path, wall: Ticker
) -> None:
    process = Process(path, wall, Source(), snapshot_interval=100)
    clock = LoopClock()
    clock.stop()
    times = []
    write = process.file.write

    def record(*arguments: Any) -> None:
        times.append(clock())
        write(*arguments)

    process.file.write = record  # type: ignore[method-assign] - a test's spy
    began = clock()

    async def passed(seconds: int) -> list[float]:
        times.clear()
        for _ in range(seconds):
            await clock.advance(1)
            await process.snapshots._in_thread(int)  # what was begun before has ended
            await asyncio.sleep(0)
            await process.snapshots._in_thread(int)
        return [each - began for each in times]

    async with process.snapshots.kept():
        await passed(20)
        assert path.exists()
        assert len(await passed(300)) == 3
        process.directory.purge(Purge())
        await process.snapshots.removed()
        assert not path.exists()
        assert len(await passed(12)) == 1


async def test_second_service_with_the_same_file_loads_it_and_writes_it_when_the_first_ended(
    path: Path, wall: Ticker
) -> None:
    first, second = Process(path, wall, Source()), Process(path, wall, Source())
    await first.directory.find(QUERY)
    await first.write()
    written = path.read_bytes()
    await second.start()
    assert second.directory.cache.get_stale(QUERY) is not None
    wall.now += 1
    await second.write()
    assert path.read_bytes() == written
    await first.stop()
    await second.write()
    assert path.read_bytes() not in (written, b"")


async def test_stop_does_not_wait_for_a_file_that_hangs(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_STOP_TIMEOUT", 0.05)
    released = threading.Event()
    monkeypatch.setattr(SnapshotFile, "acquire", lambda _: released.wait(20))
    process = Process(path, wall, Source())
    try:
        await asyncio.wait_for(process.stop(), 5)
        assert "too long" in caplog.text
    finally:
        released.set()


async def test_start_does_not_wait_for_a_file_that_hangs(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_READ_TIMEOUT", 0.05)
    released = threading.Event()
    monkeypatch.setattr(SnapshotFile, "read", lambda *_: released.wait(20))
    try:
        await asyncio.wait_for(Process(path, wall, Source()).start(), 5)
        assert "is ignored" in caplog.text
    finally:
        released.set()


async def test_purge_is_done_once_the_file_is_removed(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(path, wall, Source())
    assert await process.snapshots.removed()
    await process.write()
    process.directory.purge(Purge(queries=(QUERY,)))
    assert await process.snapshots.removed()
    assert not path.exists()

    def fail(_: SnapshotFile) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SnapshotFile, "remove", fail)
    process.directory.purge(Purge(queries=(QUERY,)))
    assert not await process.snapshots.removed()
    assert process.snapshots.error is not None
    assert "cannot be removed after a purge: Permission denied" in process.snapshots.error


async def test_purge_while_it_is_written_makes_a_stop_write_again(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(path, wall, Source())
    await process.directory.find(QUERY)
    process.directory.cache.store(ByNickname("bob"), Answer(User("Pro", "1", "bob"), "crm"))
    encode, purges = module.encode, [Purge(queries=(QUERY,))]

    def encode_and_purge(*arguments: Any) -> Any:
        yield from encode(*arguments)
        if purges:
            process.directory.purge(purges.pop())

    monkeypatch.setattr(module, "encode", encode_and_purge)
    await process.stop()
    await process.snapshots.removed()
    assert b"bob" in path.read_bytes()
    assert b"alice" not in path.read_bytes()


async def test_operator_who_purges_learns_that_the_file_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SnapshotFile) -> None:
        raise PermissionError(13, "Permission denied")

    config = (
        f"{CONFIG}  - {{name: users, kind: yaml, path: users.yaml}}\ncache: {{snapshot: file}}\n"
    )
    (tmp_path / "users.yaml").write_text(FIXTURE)
    async with serving_here(config, tmp_path) as service:
        assert await service.operations.purge({"all": True})
        monkeypatch.setattr(SnapshotFile, "remove", fail)
        with pytest.raises(OperationFailed, match="remove it by hand"):
            await service.operations.purge({"all": True})
        assert service.operations.process_report().parts["cache snapshot"].error


async def test_backend_whose_revision_fails_keeps_nothing(path: Path, wall: Ticker) -> None:
    class Failing(Source):
        @property
        def revision(self) -> str:
            raise ZeroDivisionError

    backend = Failing()
    process = Process(path, wall, backend)
    await process.directory.find(QUERY)
    await process.stop()
    backend.source.answer = DOWN
    after = Process(path, wall, backend)
    await after.start()
    with pytest.raises(LookupFailed):
        await after.directory.find(QUERY)


async def test_another_directory_is_followed_and_the_old_one_no_more(
    path: Path, wall: Ticker
) -> None:
    process = Process(path, wall, Source())
    other = directory(Source(), ticker=process.ticker)
    await other.find(QUERY)
    process.snapshots.follow(process.settings, other)
    await process.write()
    assert b"alice" in path.read_bytes()
    process.directory.cache.apply(Purge())
    await process.snapshots.removed()
    assert path.exists()
    other.purge(Purge())
    await process.snapshots.removed()
    assert not path.exists()


def test_scope_does_not_depend_on_the_file_nor_on_options_with_their_defaults(path: Path) -> None:
    one, two = settings_of(path), settings_of(path / "other", snapshot_interval=7)
    assert scope_of(one) == scope_of(two)
    for changed in ({"jitter": 0}, {"ttl": 1}):
        cache = one.cache.model_copy(update=changed)
        assert scope_of(one.model_copy(update={"cache": cache})) != scope_of(one)

    class Later(BackendOptions):
        """The options of a later version."""

        shown: bool = True

    later = one.model_copy(update={"backends": (Later(name="crm", kind="fake"),)})
    assert scope_of(later) == scope_of(one)
