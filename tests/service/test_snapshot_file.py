"""The file of a snapshot: replaced as a whole, by one process, and never anything else."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.lookup.snapshot import MARK, SnapshotIgnored
from tornado_idv.service.snapshot_file import SnapshotFile

OLD, NEW = MARK + b"old", MARK + b"new" * 100
_SIZE = 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.snapshot"


def always() -> bool:
    return True


def names(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()} - {".answers.snapshot.lock"}


def test_is_readable_for_its_owner_alone_and_replaced_as_a_whole(path: Path) -> None:
    file = SnapshotFile(path)
    assert file.read(_SIZE) is None
    for content in (OLD, NEW):
        file.write([content[:5], content[5:]], always)
        assert file.read(_SIZE) == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path) == {path.name}


@pytest.mark.parametrize("length", range(0, len(NEW) + 1, 7))
def test_process_that_is_killed_while_it_writes_leaves_the_old_one(path: Path, length: int) -> None:
    SnapshotFile(path).write([OLD], always)

    def cut() -> Iterator[bytes]:
        yield NEW[:length]
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        try:
            SnapshotFile(path).write(cut(), always)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    file = SnapshotFile(path)
    assert file.read(_SIZE) == OLD
    assert file.acquire()
    file.write([NEW], always)
    assert file.read(_SIZE) == NEW
    assert names(path) == {path.name}


def test_failure_while_it_is_written_leaves_the_old_one(path: Path) -> None:
    file = SnapshotFile(path)
    file.write([OLD], always)

    def failing() -> Iterator[bytes]:
        yield NEW
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        file.write(failing(), always)
    assert file.read(_SIZE) == OLD
    assert names(path) == {path.name}


@pytest.mark.parametrize("checks", [0, 1])
def test_purge_while_it_is_written_leaves_none_that_has_what_was_purged(
    path: Path, checks: int
) -> None:
    file = SnapshotFile(path)
    remaining = iter([True] * checks)
    file.write([NEW], lambda: next(remaining, False))
    assert file.read(_SIZE) is None
    assert names(path) == set()


def test_purge_removes_also_what_a_killed_process_left(path: Path) -> None:
    file = SnapshotFile(path)
    file.write([NEW], always)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(NEW)
    file.remove()
    assert names(path) == {draft.name}  # another process may be writing it
    assert file.acquire()
    file.remove()
    assert names(path) == set()


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
    target.write_bytes(OLD)
    path.symlink_to(target)


NOT_OURS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (_make_link, "symbolic link"),
    "pipe": (os.mkfifo, "not a regular file"),
    "folder": (lambda path: path.mkdir(), "not a regular file"),
    "configuration": (lambda path: path.write_text("profile_sites: []\n"), "not a snapshot"),
    "empty": (lambda path: path.touch(), "not a snapshot"),
}


@pytest.mark.parametrize("kind", NOT_OURS)
def test_what_is_not_a_snapshot_is_neither_read_replaced_nor_removed(path: Path, kind: str) -> None:
    make, reason = NOT_OURS[kind]
    make(path)
    before = os.lstat(path)
    file = SnapshotFile(path)

    def use() -> None:
        if kind not in {"configuration", "empty"}:
            with pytest.raises(SnapshotIgnored, match=reason):
                file.read(_SIZE)
        with pytest.raises(OSError, match=reason):
            file.write([NEW], always)
        file.remove()

    async def wait() -> None:
        await asyncio.wait_for(DaemonThread("test")(use), 10)  # a pipe may block

    asyncio.run(wait())
    assert os.path.samestat(os.lstat(path), before)
    assert path.with_name("target").exists() == (kind == "link")


def test_file_that_others_may_have_written_is_ignored(path: Path) -> None:
    file = SnapshotFile(path)
    file.write([NEW], always)
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(SnapshotIgnored, match="another user"):
            file.read(_SIZE)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(SnapshotIgnored, match="another user"):
            file.read(_SIZE)


def test_file_that_is_too_large_is_ignored(path: Path) -> None:
    file = SnapshotFile(path)
    file.write([NEW], always)
    os.truncate(path, 1 << 40)
    with pytest.raises(SnapshotIgnored, match="too large"):
        file.read(_SIZE)


def test_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "missing" / "answers.snapshot")
    assert file.read(_SIZE) is None
    with pytest.raises(FileNotFoundError):
        file.acquire()
    with pytest.raises(FileNotFoundError):
        file.write([NEW], always)
    file.remove()
