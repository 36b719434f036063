"""The file of a snapshot: replaced as a whole, by one process, and never anything else."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.lookup.snapshot import MARK, SnapshotIgnored
from tornado_idv.service.snapshot_file import SnapshotFile

OLD, NEW = MARK + b"old", MARK + b"new" * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.snapshot"


def names(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()} - {".answers.snapshot.lock"}


def test_is_readable_for_its_owner_alone_and_replaced_as_a_whole(path: Path) -> None:
    file = SnapshotFile(path)
    for content in (OLD, NEW):
        file.write(content)
        assert file.read() == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path) == {path.name}


@pytest.mark.parametrize("length", range(0, len(NEW), 7))
def test_process_that_is_killed_while_it_writes_leaves_the_old_one(path: Path, length: int) -> None:
    SnapshotFile(path).write(OLD)
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (length, length))
            SnapshotFile(path).write(NEW)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGXFSZ
    assert (path.with_name(f".{path.name}.new")).stat().st_size == length
    file = SnapshotFile(path)
    assert file.read() == OLD
    assert file.acquire()
    file.write(NEW)
    assert file.read() == NEW
    assert names(path) == {path.name}


def test_failure_while_it_is_written_leaves_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SnapshotFile(path)
    file.write(OLD)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        file.write(NEW)
    assert file.read() == OLD
    assert names(path) == {path.name}


def test_one_process_writes_and_another_takes_over_when_it_has_ended(path: Path) -> None:
    one, two = SnapshotFile(path), SnapshotFile(path)
    assert one.acquire()
    assert one.acquire()
    assert not two.acquire()
    one.release()
    assert two.acquire()
    assert not one.acquire()
    two.release()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            SnapshotFile(path).acquire()
            os.write(writing, b".")
            signal.pause()
        finally:
            os._exit(0)
    os.read(reading, 1)
    assert not one.acquire()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert one.acquire()
    one.release()
    os.close(reading)
    os.close(writing)


def _make_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"other")
    path.symlink_to(target)


def _make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NOT_OURS: dict[str, Callable[[Path], object]] = {
    "link": _make_link,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "configuration": lambda path: path.write_text("profile_sites: []\n"),
    "empty": Path.touch,
    "large": _make_large,
}


@pytest.mark.parametrize("kind", NOT_OURS)
def test_what_is_not_a_snapshot_is_neither_read_replaced_nor_removed(path: Path, kind: str) -> None:
    NOT_OURS[kind](path)
    before = os.lstat(path)
    file = SnapshotFile(path)

    def use() -> None:
        if kind in {"pipe", "folder"}:
            with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
                file.read()
        else:
            assert len(file.read()) < 100
        with pytest.raises(OSError, match="not a snapshot"):
            file.write(NEW)
        file.remove()

    async def wait() -> None:
        await asyncio.wait_for(DaemonThread("test")(use), 10)  # a pipe may block

    asyncio.run(wait())
    assert os.path.samestat(os.lstat(path), before)
    assert path.with_name("target").exists() == (kind == "link")


def test_file_that_others_may_have_written_is_ignored(path: Path) -> None:
    file = SnapshotFile(path)
    file.write(NEW)
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(SnapshotIgnored, match="another user"):
            file.read()
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(SnapshotIgnored, match="another user"):
            file.read()


def test_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "missing" / "answers.snapshot")
    for use in (file.read, file.acquire, lambda: file.write(NEW)):
        with pytest.raises(FileNotFoundError):
            use()
    file.remove()
