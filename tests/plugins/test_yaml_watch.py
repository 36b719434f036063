"""The YAML backend follows its file, whichever way it is edited."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from idv_yaml import backend as backend_module
from idv_yaml.backend import YamlBackend
from tornado_idv import ByNickname, FileSignature
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.registry import open_backends
from tornado_idv.testing import make_backend

AwaitUser = Callable[[str], Awaitable[None]]


def write(path: Path, nickname: str) -> None:
    """Makes the file a fixture of one user."""
    text = f"users: [{{nickname: {nickname}, card_number: 1, plan: Free}}]\n"
    path.write_text(text, encoding="utf-8")


def move(path: Path, target: Path) -> None:
    path.rename(target)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fixture file in a folder of its own."""
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


def logged(text: str) -> Awaitable[None]:
    """Done when the backend logs the text."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Waiter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage() and not done.done():
                done.set_result(None)

    logger, waiter = logging.getLogger("idv_yaml.backend"), Waiter()
    logger.addHandler(waiter)
    done.add_done_callback(lambda _: logger.removeHandler(waiter))
    return asyncio.wait_for(done, timeout=10)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_an_edit_in_place_is_seen(path: Path) -> None:
    async with watched(path) as (_, next_user):
        for nickname in ("bob", "carol", "alice"):
            write(path, nickname)
            await next_user(nickname)


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
    assert [each for each in warnings(caplog) if "fixture not reloaded" in each]
    caplog.clear()


async def test_a_rename_over_the_file_is_seen(path: Path) -> None:
    async with watched(path) as (_, next_user):
        for nickname in ("bob", "carol", "alice"):
            new = path.with_suffix(".new")
            write(new, nickname)
            move(new, path)
            await next_user(nickname)


async def test_a_swapped_link_is_seen(tmp_path: Path) -> None:
    """As Kubernetes swaps ``..data``; and then an edit of the file behind the new link."""
    for nickname in ("alice", "bob"):
        (tmp_path / nickname).mkdir()
        write(tmp_path / nickname / "users.yaml", nickname)
    (tmp_path / "..data").symlink_to("alice")
    (tmp_path / "users.yaml").symlink_to("..data/users.yaml")
    async with watched(tmp_path / "users.yaml") as (_, next_user):
        for nickname in ("bob", "alice", "bob"):
            (tmp_path / "..new").symlink_to(nickname)
            move(tmp_path / "..new", tmp_path / "..data")
            await next_user(nickname)
        write(tmp_path / "bob" / "users.yaml", "carol")
        await next_user("carol")


async def test_a_link_changed_further_up_is_seen(tmp_path: Path) -> None:
    """The folder that contains the file is the same, and so is its name."""
    for nickname in ("alice", "bob"):
        (tmp_path / nickname).mkdir()
        write(tmp_path / nickname / "users.yaml", nickname)
    (tmp_path / "current").symlink_to("alice")
    async with watched(tmp_path / "current" / "users.yaml") as (_, next_user):
        for nickname in ("bob", "alice", "bob"):
            (tmp_path / "new").symlink_to(nickname)
            move(tmp_path / "new", tmp_path / "current")
            await next_user(nickname)


async def test_a_file_that_comes_back_is_seen(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its users are found all the while, and there is one warning."""
    async with watched(path) as (backend, next_user):
        reported = logged("keeping the old users")
        move(path, path.with_suffix(".old"))
        await reported
        assert await backend.find(ByNickname("alice")) is not None
        write(path, "bob")
        await next_user("bob")
    assert len(warnings(caplog)) == 1


async def test_a_replaced_folder_is_seen(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also after a while without any folder."""
    async with watched(path) as (backend, next_user):
        for nickname in ("carol", "dave"):
            write(path, nickname)
            await next_user(nickname)
        reported = logged("keeping the old users")
        move(path.parent, path.parent.with_name("old"))
        await reported
        assert await backend.find(ByNickname("dave")) is not None
        path.parent.mkdir()
        write(path, "bob")
        await next_user("bob")
    assert len(warnings(caplog)) == 1


async def test_a_file_that_is_still_changing_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be half written; and an edit right after its last one may have the same times.

    One that never stops changing is read now and then.
    """
    states = [1, 2, 3, 3, 3, 4, 5, 6, 7, 7, 7, 7]
    seen: list[int] = []
    reads: list[list[int]] = []
    is_over = asyncio.Event()

    def find(_: Path) -> int:
        if len(seen) == len(states):
            is_over.set()
        else:
            seen.append(states[len(seen)])
        return seen[-1]

    async def reload(_: YamlBackend) -> None:
        reads.append([*seen])

    monkeypatch.setattr(backend_module, "_CHECK_INTERVAL", 0.001)
    monkeypatch.setattr(backend_module.FileSignature, "find", find)
    monkeypatch.setattr(YamlBackend, "reload", reload)
    async with open_backends([make_backend(YamlBackend, path.parent, path=path.name)]):
        await asyncio.wait_for(is_over.wait(), timeout=10)
    assert [len(each) for each in reads] == [3, 4, 9, 10]


async def test_a_file_that_becomes_a_symlink_loop_keeps_the_old_users(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning of it, without a traceback; and the next good file is read."""
    async with watched(path) as (backend, next_user):
        reported = logged("keeping the old users")
        loop = path.with_name("loop")
        loop.symlink_to(path.name)
        move(loop, path)
        await reported
        assert await backend.find(ByNickname("alice")) is not None
        new = path.with_suffix(".new")
        write(new, "bob")
        move(new, path)
        await next_user("bob")
    (warning,) = warnings(caplog)
    assert warning.endswith("Too many levels of symbolic links")
    assert "Traceback" not in caplog.text


async def test_an_edit_that_keeps_size_and_modification_time_is_seen(path: Path) -> None:
    """As a copy that preserves times makes it; the status change time differs."""
    async with watched(path) as (_, next_user):
        before = path.stat()
        write(path, "carol")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        await next_user("carol")


async def test_a_listener_that_raises_does_not_end_the_watch(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make_backend(YamlBackend, path.parent, path=path.name)
    changed: asyncio.Queue[str] = asyncio.Queue()

    def failing() -> None:
        changed.put_nowait("changed")
        raise ValueError("a mistake of the listener")

    backend.on_change(failing)
    async with open_backends([backend]):
        for nickname in ("bob", "carol"):
            write(path, nickname)
            await asyncio.wait_for(changed.get(), timeout=10)
            assert await backend.find(ByNickname(nickname)) is not None


async def test_closing_ends_the_watch(path: Path) -> None:
    async with watched(path):
        (watch,) = (task for task in asyncio.all_tasks() if task.get_name() == "watch tested")
    assert watch.cancelled()
