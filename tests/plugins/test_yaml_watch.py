"""The YAML backend follows its file, whichever way it is edited."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from idv_yaml import backend as backend_module
from idv_yaml.backend import YamlBackend
from support.databases.sqlite_databases import levels
from support.http.http_server import until
from tornado_idv import ByNickname, FileSignature
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

AwaitUser = Callable[[str], Awaitable[None]]


def write(path: Path, nickname: str) -> None:
    """Makes the file a fixture of one user."""
    text = f"users: [{{nickname: {nickname}, card_number: 1, plan: Free}}]\n"
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users" / "users.yaml"
    path.parent.mkdir()
    write(path, "alice")
    return path


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[tuple[AnyBackend, AwaitUser]]:
    """A backend that watches, and a function to await its next change to a user with."""
    backend = make_backend(YamlBackend, path.parent, path=path.name)
    changed = asyncio.Event()
    backend.on_change(changed.set)

    async def next_user(nickname: str) -> None:
        await asyncio.wait_for(changed.wait(), timeout=10)
        changed.clear()
        assert await backend.find(ByNickname(nickname)) is not None

    async with open_backends([backend]):
        yield backend, next_user


def keep_times(path: Path, nickname: str) -> None:
    """Edit as a copy that preserves times does; the status change time differs."""
    before = path.stat()
    write(path, f"{nickname:<5}")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def rename_over(path: Path, nickname: str) -> None:
    write(path.with_suffix(".new"), nickname)
    path.with_suffix(".new").rename(path)


def swap_link(path: Path, nickname: str) -> None:
    """Swap a link to the file, as Kubernetes swaps ``..data``."""
    write(path.with_suffix(f".{nickname}"), nickname)
    link = path.with_suffix(".new")
    link.symlink_to(f"users.{nickname}")
    link.rename(path)


def swap_folder(path: Path, nickname: str) -> None:
    """Swap a link further up; the folder that contains it is the same, and so is its name."""
    folder, new = path.parent, path.parent.with_name("new")
    (target := folder.with_name(nickname)).mkdir()
    write(target / path.name, nickname)
    if not folder.is_symlink():
        folder.rename(folder.with_name("first"))
    new.symlink_to(nickname)
    new.rename(folder)


EDITS = [write, keep_times, rename_over, swap_link, swap_folder]


@pytest.mark.parametrize("edit", EDITS)
async def test_each_edit_is_seen(path: Path, edit: Callable[[Path, str], None]) -> None:
    async with watched(path) as (_, next_user):
        edit(path, "bob")
        await next_user("bob")
        write(path, "carol")
        await next_user("carol")


@pytest.mark.parametrize("gone", ["file", "folder", "symlink loop"])
async def test_users_are_kept_until_a_file_comes_back(
    path: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are found all the while, and there is one warning, without a traceback."""
    async with watched(path) as (backend, next_user):
        moved = path.parent if gone == "folder" else path
        moved.rename(moved.with_name("old"))
        if gone == "symlink loop":
            path.symlink_to(path.name)
        await until(lambda: "keeping the old users" in caplog.text)
        assert await backend.find(ByNickname("alice")) is not None
        path.parent.mkdir(exist_ok=True)
        rename_over(path, "bob")
        await next_user("bob")
    (warning,) = levels(caplog, logging.WARNING)
    assert warning.endswith("Too many levels of symbolic links" if "loop" in gone else "directory")


@pytest.mark.parametrize(
    ("owner", "method"), [(FileSignature, "find"), (YamlBackend, "_load")], ids=["look", "read"]
)
async def test_an_edit_is_read_again_after_an_error(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    method: str,
) -> None:
    """Of the system, such as that no thread can be started."""
    call = getattr(owner, method)
    errors = iter([RuntimeError("can't start new thread")])

    def call_or_fail(argument: object) -> object:
        for error in errors:
            raise error
        return call(argument)

    async with watched(path) as (_, next_user):
        monkeypatch.setattr(owner, method, call_or_fail)
        write(path, "bob")
        await next_user("bob")
    assert [each for each in caplog.messages if "fixture not reloaded" in each]
    caplog.clear()


async def test_a_changing_file_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be half written; and an edit right after its last one may have the same times.

    One that never stops changing is read now and then.
    """
    # The first two are of the read at the start.
    states = [1, 1, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 7, 7]
    seen: list[int] = []
    reads: list[list[int]] = []
    is_over = asyncio.Event()

    def find(each: Path) -> int:
        if each != path:  # of a backend that another thread of this process serves
            return 0
        if len(seen) == len(states):
            is_over.set()
        else:
            seen.append(states[len(seen)])
        return seen[-1]

    class Watched(YamlBackend):
        async def reload(self) -> None:
            reads.append([*seen])

    monkeypatch.setattr(backend_module, "_CHECK_INTERVAL", 0.001)
    monkeypatch.setattr(backend_module, "FileSignature", SimpleNamespace(find=find))
    async with open_backends([make_backend(Watched, path.parent, path=path.name)]):
        await asyncio.wait_for(is_over.wait(), timeout=10)
    assert [len(each) for each in reads] == [5, 6, 11, 12]


async def test_a_file_written_during_its_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile, the old users are kept: the content may be cut."""
    read_bytes = Path.read_bytes

    def read_and_write(each: Path) -> bytes:
        content = read_bytes(each)
        write(each, "carol")
        return content

    async with watched(path) as (backend, next_user):
        write(path, "bob")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_and_write)
            await cast("YamlBackend", backend).reload()
        assert await backend.find(ByNickname("alice")) is not None
        await next_user("carol")


async def test_closing_ends_the_watch(path: Path) -> None:
    async with watched(path):
        (watch,) = (task for task in asyncio.all_tasks() if task.get_name() == "watch tested")
    assert watch.cancelled()
