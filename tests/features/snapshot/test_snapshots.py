"""Snapshots of a directory in one process, whose clocks and file a test controls."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from support.fakes.clock_and_backends import LoopClock, Ticker
from support.fakes.directories import QUERY, directory
from support.fakes.snapshots import TTL, Process, Source, settings_of
from support.processes.service import CONFIG, USERS, serving_here
from tornado_idv.admin.operations import OperationFailed
from tornado_idv.features.snapshot import snapshot_file
from tornado_idv.features.snapshot import snapshots as module
from tornado_idv.features.snapshot.snapshot_file import SnapshotFiles
from tornado_idv.features.snapshot.snapshots import status
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.shared import Purge
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User
from tornado_idv.service.directories import scope_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.snapshot"


@pytest.fixture
def wall() -> Ticker:
    return Ticker()


@pytest.fixture
def process(path: Path, wall: Ticker) -> Process:
    return Process(path, wall, Source())


def fail(_: SnapshotFiles) -> None:
    raise OSError(30, "Read-only file system")


async def test_stop_writes_and_a_failed_one_does_not(path: Path, process: Process) -> None:
    await process.directory.find(QUERY)
    with pytest.raises(ZeroDivisionError):
        async with process.snapshots.running():
            raise ZeroDivisionError
    assert not path.exists()
    await process.stop()
    assert path.exists()


async def test_is_written_every_interval_and_after_removal(path: Path, wall: Ticker) -> None:
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
            await process.snapshots._in_thread(int)  # noqa: SLF001 - what was begun before has ended
            await asyncio.sleep(0)
            await process.snapshots._in_thread(int)  # noqa: SLF001 - tasks that nothing reports
        return [each - began for each in times]

    async with process.snapshots.running():
        await passed(20)
        assert path.exists()
        assert len(await passed(335)) == 3  # a thread may take some seconds of this clock each time
        process.directory.purge(Purge())
        await process.snapshots.purged()
        assert not path.exists()
        assert len(await passed(20)) == 1
        reloaded = settings_of(path, snapshot_interval=10)
        process.snapshots.follow(reloaded, process.directory)
        assert len(await passed(100)) > 4


@pytest.mark.parametrize(("purges", "cached"), [([], "stale"), ([Purge()], "absent")])
async def test_purge_after_the_file_was_read_keeps_its_answers_out(
    path: Path, wall: Ticker, process: Process, purges: Sequence[Purge], cached: str
) -> None:
    await process.directory.find(QUERY)
    await process.stop()
    process = Process(path, wall, Source())
    first = directory(Source(), ticker=process.ticker)
    async with process.snapshots.opened():
        for each in purges:
            first.cache.apply(each)
        process.snapshots.follow(process.settings, first)
        await process.snapshots.purged()
    assert first.cache.describe(QUERY) == cached
    assert path.exists() != bool(purges)


async def test_second_service_neither_reads_nor_writes_before_the_end_of_the_first(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Process(path, wall, Source()), Process(path, wall, Source())
    wall.now += 5
    await first.directory.find(QUERY)
    await first.write()
    written = path.read_bytes()
    monkeypatch.setattr(snapshot_file, "_SERVICE", b"another service.")
    await second.start()
    assert second.directory.cache.get_stale(QUERY) is None
    await second.write()
    assert path.read_bytes() == written
    assert second.snapshots.error == f"{path}: cannot be written: another service writes it"
    assert second.snapshots.since == wall.now
    wall.now += 5
    first.file.release()
    await second.write()
    assert path.read_bytes() != written
    assert (second.snapshots.error, second.snapshots.since) == (None, wall.now)
    assert caplog.text.count("is not read: another service writes it") == 1


async def test_file_that_hangs_is_not_waited_for(
    path: Path, wall: Ticker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_READ_TIMEOUT", 0.05)
    monkeypatch.setattr(module, "_STOP_TIMEOUT", 0.05)
    process, released = Process(path, wall, Source()), Event()
    monkeypatch.setattr(SnapshotFiles, "acquire", lambda _: released.wait(20))
    try:
        await asyncio.wait_for(process.start(), 5)
        assert "is ignored: timed out while reading" in caplog.text
        await asyncio.wait_for(process.stop(), 5)
        assert "not written at the stop: timed out" in caplog.text
        process.directory.purge(Purge())
        with pytest.raises(OperationFailed):
            await asyncio.wait_for(process.snapshots.purged(), 5)
    finally:
        released.set()


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, Path.mkdir])
async def test_something_else_in_its_place_is_reported_and_stays(
    path: Path, wall: Ticker, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    make(path)
    process = Process(path, wall, Source())
    await process.start()
    assert caplog.text.count(f"{path} is ignored: ") == 1
    await process.write()
    problem = "cannot be written: the existing file is not a snapshot"
    assert process.snapshots.error == f"{path}: {problem}"


@pytest.mark.parametrize("at_stop", [False, True])
async def test_purge_while_it_is_written_leaves_none_that_has_what_was_purged(
    path: Path, process: Process, monkeypatch: pytest.MonkeyPatch, *, at_stop: bool
) -> None:
    await process.directory.find(QUERY)
    process.directory.cache.store(ByNickname("bob"), Answer(User("Pro", "1", "bob"), "crm"))
    encode, purges = module.encode, [Purge(queries=(QUERY,))]

    def encode_and_purge(*arguments: Any) -> Any:
        for part in [*encode(*arguments)]:
            if purges:
                process.directory.purge(purges.pop())
            yield part

    monkeypatch.setattr(module, "encode", encode_and_purge)
    if at_stop:  # it is written again
        await process.stop()
        assert b"bob" in path.read_bytes()
        assert b"alice" not in path.read_bytes()
    else:
        await process.write()
        await process.snapshots.purged()
        assert not path.exists()


@pytest.mark.parametrize("before", ["nothing", "a purge that removes the file", "a failed write"])
@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("in_former", [False, True])
async def test_user_who_is_gone_after_a_reload_during_the_write_is_not_left_in_the_file(
    path: Path, process: Process, before: str, *, during: bool, in_former: bool
) -> None:
    """Also if a lookup from before the reload no longer finds the user."""
    await process.directory.find(QUERY)
    if before == "a failed write":
        path.mkdir()
        await process.write()
        path.rmdir()
    elif before == "a purge that removes the file":
        process.directory.purge(Purge(queries=(ByNickname("nobody"),)))
    begun, may_write, write = Event(), Event(), process.file.write

    def write_later(*arguments: Any) -> None:
        begun.set()
        may_write.wait(30)
        write(*arguments)

    process.file.write = write_later  # type: ignore[method-assign] - a test's spy
    writing = asyncio.create_task(process.write())
    await asyncio.to_thread(begun.wait, 30)
    reloaded = directory(Source())
    reloaded.replace(process.directory, [])
    process.snapshots.follow(process.settings, reloaded)
    cache = process.directory.cache if in_former else reloaded.cache
    if during:
        cache.store(QUERY, Answer(None))
    may_write.set()
    await writing
    if not during:
        cache.store(QUERY, Answer(None))
    await process.snapshots.purged()
    assert not path.exists()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("first", "query"), [(QUERY, ByCard("4000")), (ByCard("4000"), QUERY)])
async def test_file_is_removed_when_a_user_of_it_is_no_longer_found(
    path: Path, wall: Ticker, process: Process, first: Query, query: Query, *, is_restarted: bool
) -> None:
    await process.directory.find(first)
    await process.write()
    if is_restarted:
        process.file.release()
        process = Process(path, wall, Source())
        await process.start()
    process.ticker.now += TTL + 1
    process.directory.guards[0].backend.source.answer = None
    assert (await process.directory.find(ByNickname("bob"))).user is None
    assert await process.snapshots.purged()
    assert path.exists()
    assert (await process.directory.find(query)).user is None
    assert await process.snapshots.purged()
    assert not path.exists()


async def test_user_in_a_file_of_a_failed_write_is_not_left(
    path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after another write, which a reload has outdated."""
    await process.directory.find(QUERY)
    write = process.file.write

    def fail_late(*arguments: Any) -> None:
        write(*arguments)
        raise KeyError(QUERY.text)

    process.file.write = fail_late  # type: ignore[method-assign] - a test's spy
    await process.write()
    assert "alice" not in f"{process.snapshots.error}{caplog.messages}"
    writing, reloaded = asyncio.create_task(process.write()), directory(Source())
    await asyncio.sleep(0)
    process.snapshots.follow(process.settings, reloaded)
    await writing
    reloaded.cache.store(QUERY, Answer(None))
    await process.snapshots.purged()
    assert not path.exists()


@pytest.mark.parametrize(
    ("other", "fails"), [("other.snapshot", False), ("other.snapshot", True), (None, True)]
)
async def test_file_that_a_reload_leaves_is_removed_at_once_or_by_the_next_purge(
    path: Path, process: Process, monkeypatch: pytest.MonkeyPatch, other: str | None, *, fails: bool
) -> None:
    """A later start with this file would bring purged users back."""
    await process.write()
    settings = settings_of(path, snapshot=path.with_name(other) if other else None)
    with monkeypatch.context() as patched:
        if fails:
            patched.setattr(SnapshotFiles, "remove", fail)
        process.snapshots.follow(settings, process.directory)
        with pytest.raises(OperationFailed) if fails else nullcontext():
            await process.snapshots.purged()
    assert path.exists() == fails
    with monkeypatch.context() as patched:
        patched.setattr(snapshot_file, "_SERVICE", b"another service.")
        SnapshotFiles(path).acquire()
    for is_left in (False, True):  # a file that another service has written since is not removed
        process.directory.purge(Purge())
        assert await process.snapshots.purged()
        assert path.exists() == is_left
        SnapshotFiles(path).write([b"tornado-idv snapshot 1"])


async def test_outdated_writes_leave_no_name(path: Path, process: Process) -> None:
    """Or the file would be removed without a reason when the user is no longer found."""
    await process.write()
    for _ in range(2):
        writing = asyncio.create_task(process.write())
        await asyncio.sleep(0)
        process.snapshots.follow(process.settings, process.directory)
        await process.directory.find(QUERY)
        await writing
    process.directory.cache.store(QUERY, Answer(None))
    await process.snapshots.purged()
    assert path.exists()


async def test_write_that_fails_is_logged_once_and_stops_nothing(
    path: Path, wall: Ticker, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop does not try it again."""
    process = Process(path / "missing", wall, Source())
    for _ in range(2):
        await process.write()
    process.directory.purge(Purge())
    assert await process.snapshots.purged()
    await process.stop()
    assert caplog.text.count("cannot be written: No such file") == 1
    assert "timed out" not in caplog.text
    path.mkdir()
    await process.write()
    assert process.snapshots.error is None


async def test_purge_reports_a_kept_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"{CONFIG}{USERS}cache: {{snapshot: file}}\n"
    async with serving_here(config, tmp_path) as service:
        assert await service.purge({"all": True})
        monkeypatch.setattr(SnapshotFiles, "remove", fail)
        with pytest.raises(OperationFailed, match="remove it by hand"):
            await service.purge({"all": True})
        report = await service.report()
    assert report.degraded() == ["cache snapshot"]
    error = "may still contain purged users: Read-only file system"
    assert error in str(status(report)["cache_snapshot"])


@pytest.mark.parametrize("fails", ["at the stop", "at the start"])
async def test_answers_after_a_failing_revision(path: Path, wall: Ticker, fails: str) -> None:
    class Failing(Source):
        fails = False

        @property
        def revision(self) -> str:
            if self.fails:
                raise ZeroDivisionError
            return "1"

    failing, later = Failing("first"), Source("later")
    failing.source.answer = None
    process = Process(path, wall, failing, later)
    await process.directory.find(QUERY)
    failing.fails = fails == "at the stop"
    await process.stop()
    assert b"alice" in path.read_bytes()
    failing.fails = not failing.fails
    after = Process(path, wall, failing, later)
    await after.start()
    assert after.directory.cache.get_stale(QUERY) is None


async def test_another_directory_is_followed_and_old_one_no_more(
    path: Path, wall: Ticker, process: Process
) -> None:
    other = directory(Source(), ticker=process.ticker)
    await other.find(QUERY)
    process.snapshots.follow(settings_of(path, jitter=0), other)
    await process.write()
    after, wall.now = Process(path, wall, Source(), jitter=0), wall.now + 5
    await after.start()
    stale = after.directory.cache.get_stale(QUERY)
    assert (stale and stale.since) == process.ticker.now - 5
    process.directory.cache.apply(Purge())
    await process.snapshots.purged()
    assert path.exists()
    other.purge(Purge())
    await process.snapshots.purged()
    assert not path.exists()


def test_scope_does_not_depend_on_the_file_nor_on_options_with_their_defaults(path: Path) -> None:
    one, two = settings_of(path), settings_of(path / "other", snapshot_interval=7)
    assert scope_of(one) == scope_of(two)
    sites = (*one.profile_sites, "https://b.example")
    for changed in ({"cache": settings_of(path, jitter=0).cache}, {"profile_sites": sites}):
        assert scope_of(one.model_copy(update=changed)) != scope_of(one)

    class Later(BackendOptions):
        """The options of a later version."""

        shown: bool = True

    later = one.model_copy(update={"backends": (Later(name="crm", kind="fake"),)})
    assert scope_of(later) == scope_of(one)
