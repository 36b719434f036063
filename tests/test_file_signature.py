"""A file's signature changes when the file is written or replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_idv import FileSignature

SIGNATURE = FileSignature(device=1, inode=7, size=4096, mtime_ns=1, ctime_ns=1)


def write_in_place(path: Path) -> None:
    path.write_text("other", encoding="utf-8")


def write_and_restore_time(path: Path) -> None:
    before = path.stat()
    path.write_text("other", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_over(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("alice", encoding="utf-8")
    before = path.stat()
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


@pytest.mark.parametrize(
    ("change", "same_file"),
    [(write_in_place, True), (write_and_restore_time, True), (rename_over, False)],
)
def test_a_change_of_size_5_is_seen(
    tmp_path: Path, change: Callable[[Path], None], *, same_file: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("alice", encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    before = FileSignature.of(path)
    change(path)
    after = FileSignature.of(path)
    assert after != before
    assert after.is_same_file(before) is same_file


def test_files_of_one_inode_number_on_two_devices_are_different_files() -> None:
    assert SIGNATURE.is_same_file(SIGNATURE._replace(size=8192, mtime_ns=2, ctime_ns=2))
    assert not SIGNATURE.is_same_file(SIGNATURE._replace(device=2))
    assert not SIGNATURE.is_same_file(SIGNATURE._replace(inode=8))
