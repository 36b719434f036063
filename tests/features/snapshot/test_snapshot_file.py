"""The file of a snapshot: replaced as a whole, by one process, and never anything else."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.features.snapshot.contents import MARK, SnapshotIgnored
from tornado_idv.features.snapshot.snapshot_file import SnapshotFiles

OLD, NEW = MARK + b"old", MARK + b"new" * 100
FILES = Path("/proc/self/fd")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.snapshot"


def names(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()} - {".answers.snapshot.lock"}


def test_is_readable_for_its_owner_alone_and_replaced_as_a_whole(path: Path) -> None:
    file = SnapshotFiles(path)
    for content in (OLD, NEW):
        file.write([content])
        assert file.read(path) == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path) == {path.name}


def test_failed_write_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a kill, the new content is complete before it gets the name."""
    file = SnapshotFiles(path)
    file.write([OLD])
    draft = path.with_name(f".{path.name}.new")

    def fail(_: int) -> None:
        assert file.read(path) == OLD
        assert draft.read_bytes() == NEW
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            file.write([NEW])
    assert file.read(path) == OLD
    assert names(path) == {path.name}
    draft.write_bytes(NEW[:20])  # left by a killed process
    file.write([NEW])
    assert file.read(path) == NEW
    assert names(path) == {path.name}


def test_each_worker_has_a_file_and_a_successor_takes_one_over(path: Path) -> None:
    first, second = path, path.with_name(f"{path.name}.1")
    one, two, three = SnapshotFiles(path), SnapshotFiles(path), SnapshotFiles(path)
    for _ in range(2):
        one.acquire()
        two.acquire()
        assert (one.own, two.own) == (first, second)
    assert stat.S_IMODE(path.with_name(f".{path.name}.lock").stat().st_mode) == 0o600
    one.write([OLD])
    two.write([NEW])
    assert [three.read(each) for each in three.existing] == [OLD, NEW]
    one.release()
    three.acquire()
    assert three.own == first
    three.remove()
    assert three.existing == []
    two.release()
    three.release()
    assert str(path.parent) not in str([os.path.realpath(each) for each in FILES.iterdir()])


def test_removal_by_another_worker_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SnapshotFiles(path)
    file.write([OLD])
    monkeypatch.setattr(Path, "is_file", lambda each: each.unlink(missing_ok=True) or True)
    file.remove()
    assert file.existing == []


def _make_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"other")
    path.symlink_to(target)
    path.with_name(f".{path.name}.lock").symlink_to(target)


def _make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NOT_OURS: dict[str, Callable[[Path], object]] = {
    "link": _make_link,
    "lost link": lambda path: path.symlink_to("missing"),
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
    file = SnapshotFiles(path)

    def use() -> None:
        if kind == "link":
            with pytest.raises(OSError, match="symbolic links"):
                file.acquire()
        if kind in {"lost link", "pipe", "folder"}:
            with pytest.raises(OSError, match=r"No such|not a regular file|Is a directory"):
                file.read(path)
        else:
            assert len(file.read(path)) < 100
        with pytest.raises(OSError, match="not a snapshot"):
            file.write([NEW])
        file.remove()

    async def wait() -> None:
        await asyncio.wait_for(DaemonThread("test")(use), 10)  # a pipe may block

    asyncio.run(wait())
    assert os.path.samestat(os.lstat(path), before)
    assert path.with_name("target").exists() == (kind == "link")


def test_file_that_others_may_have_written_is_ignored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SnapshotFiles(path)
    file.write([NEW])
    path.chmod(0o660)  # as Kubernetes gives the files of a volume to our group by `fsGroup`
    assert file.read(path) == NEW
    with monkeypatch.context() as patched:  # it may be a supplementary group of the process
        patched.setattr(os, "getegid", lambda: -1)
        patched.setattr(os, "getgroups", lambda: [path.stat().st_gid])
        assert file.read(path) == NEW

    def assert_ignored() -> None:
        with pytest.raises(SnapshotIgnored, match="another user"):
            file.read(path)

    path.chmod(0o602)
    assert_ignored()
    if os.geteuid() == 0:
        path.chmod(0o660)
        os.chown(path, -1, 12345)
        assert_ignored()
        path.chmod(0o600)
        os.chown(path, 12345, os.getegid())
        assert_ignored()
