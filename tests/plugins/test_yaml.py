"""The YAML backend: the promises of every backend, bad files, and edits of any kind."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import idv_yaml
from idv_yaml import backend as backend_module
from idv_yaml.backend import YamlBackend, YamlOptions
from support.databases.sqlite_databases import levels
from support.http.http_server import until
from support.pages import code_blocks
from tornado_idv import ByCard, ByNickname, FileSignature, StartError, User, yaml_loader
from tornado_idv.errors import Unavailable
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import opened_backend

AwaitUser = Callable[[str], Awaitable[None]]
ALICE = User("Free", "4000123412341234", "alice")
BOB = User("Pro", "0012345670", "bob")


def fixture(*users: User) -> str:
    lines = [f"count: {len(users)}", "users:" if users else "users: []"]
    for user in users:
        lines += [f'  - nickname: "@{user.nickname}"', f"    card_number: {user.card_number}"]
        lines += [f"    profile_url: {user.profile_url}"] if user.profile_url else []
        lines += [f"    plan: {user.plan}"]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_user(path: Path, nickname: str) -> None:
    write(path, fixture(User("Free", ALICE.card_number, nickname)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(backend_module, "_CHECK_INTERVAL", 0.005)
    path = tmp_path / "users" / "users.yaml"
    path.parent.mkdir()
    write(path, fixture(ALICE))
    return path


@asynccontextmanager
async def unwatched(path: Path) -> AsyncIterator[tuple[YamlBackend, list[str]]]:
    """A backend that reloads when the test calls it, and its reported changes."""
    backend = make_backend(YamlBackend, path.parent, path=path.name, watch="false")
    changes: list[str] = []
    backend.on_change(lambda: changes.append("changed"))
    async with opened_backend(backend):
        yield backend, changes


class TestConformance(BackendConformance):
    holds_at = False

    @pytest.fixture
    def make_backend(self, tmp_path: Path) -> MakeBackend:
        def make(users: Sequence[User]) -> AnyBackend:
            write(tmp_path / "users.yaml", fixture(*users))
            return make_backend(YamlBackend, tmp_path, path="users.yaml")

        return make

    @pytest.fixture
    def truncated_backend(self, make_backend: MakeBackend, tmp_path: Path) -> AnyBackend:
        backend = make_backend(self.users)
        text = f"count: {len(self.users)}\n{fixture(*self.users)}"
        write(tmp_path / "users.yaml", text[: text.rindex("- ")])
        return backend

    @pytest.fixture
    def failing_backend(self, tmp_path: Path) -> AnyBackend:
        return make_backend(YamlBackend, tmp_path, path="absent.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.yaml", "absent.yaml: cannot be read: No such file"),
        (".", "not a file"),
        ("loop.yaml", "Too many levels of symbolic links"),
    ],
)
async def test_what_is_no_file_stops_the_start(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(StartError, match=re.escape(message)):
        await make_backend(YamlBackend, tmp_path, path=name).open()


async def test_a_reload_answers_from_the_new_users(path: Path) -> None:
    async with unwatched(path) as (backend, changes):
        write(path, fixture(ALICE))
        await backend.reload()
        assert changes == []
        assert "watch tested" not in {task.get_name() for task in asyncio.all_tasks()}
        before = backend.revision
        write(path, fixture(BOB))
        await backend.reload()
        assert backend.revision != before
        assert await backend.find(ByNickname("alice")) is None
        assert await backend.find(ByCard("0012345670")) == BOB
        assert backend.user_count == 1
        assert changes == ["changed"]


async def test_entry_of_a_fault_without_a_user_is_unavailable(path: Path) -> None:
    """Of a nickname in any case, if case is folded."""
    alice = "{nickname: alice, card_number: '1', plan: Free, fault: {reset: true}}"
    write(path, f"users: [{alice}, {{nickname: Bob, fault: {{reset: true}}}}]\n")
    context = {"base_dir": path.parent, "demo": True, "nickname_case": "fold"}
    options = {"name": "tested", "kind": "yaml", "path": path.name}
    backend = YamlBackend(YamlOptions.model_validate(options, context=context))
    async with opened_backend(backend):
        assert await backend.find(ByCard("1")) == User("Free", "1", "alice")
        with pytest.raises(Unavailable) as caught:
            await backend.find(ByNickname("bob"))
        write(path, f"users: [{alice}]\n")
        await backend.reload()
        assert {*backend.faults} == {ByNickname("alice"), ByCard("1")}
    assert not caught.value.counts_against_breaker


async def test_a_file_that_has_lost_its_count_keeps_the_old_users(path: Path) -> None:
    """A reload knows that there was one, also after others that were rejected."""
    count, users = fixture(ALICE, BOB).split("\n", 1)
    write(path, f"{users}{count}\n")
    async with unwatched(path) as (backend, changes):
        for length, problem in ((len(users) // 2, "not valid YAML"), (len(users), "to 2")):
            write(path, users[:length])
            await backend.reload()
            assert problem in str(backend.problem)
            assert await backend.find(ByNickname("bob")) == BOB
        assert changes == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "users.yaml:1:1: users: missing or empty; the file may be truncated; write users: []"),
        ("users:\n- {nickname: canary canary}\n", "users.yaml:2:4: users[0].nickname: write"),
        (None, "users.yaml: cannot be read: No such file"),
        ("fault: {reset: true}\nusers: []\n", "users.yaml:1:1: fault: needs demo: true"),
        ("users:\n" + "- x\n" * 9, "users.yaml:10:3: users[8]: write a mapping with nickname"),
        ("users:\n" + "- x\n" * 10, "; and 1 more"),
    ],
    ids=["empty", "invalid", "missing", "fault", "ten problems", "11 problems"],
)
async def test_a_bad_file_is_reported_once_and_the_old_users_are_kept(
    path: Path, text: str | None, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And once more after a good one."""
    async with unwatched(path) as (backend, changes):
        for _ in range(2):
            path.unlink() if text is None else write(path, text)
            for _ in range(2):
                await backend.reload()
            assert message in str(backend.problem)
            assert await backend.find(ByNickname("alice")) == ALICE
            write(path, fixture(ALICE))
            await backend.reload()
            assert backend.problem is None
        assert changes == []
    warning, again = levels(caplog, logging.WARNING)
    assert warning == again
    assert warning.startswith("backend tested: fixture rejected, keeping the old users: ")
    assert warning.count("users.yaml:") <= 10
    assert (" more" in warning) == (" more" in message)
    assert "canary" not in caplog.text


def test_end_waits_for_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at SIGTERM: a large file is read for many seconds."""
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def parse_for_long(*_: object, **__: object) -> None:
        begun.set()
        goes_on.wait(5)
        ended.set()

    async def open_and_leave() -> None:
        monkeypatch.setattr(backend_module, "parse", parse_for_long)
        opening = asyncio.create_task(make_backend(YamlBackend, path.parent, path=path).open())
        await asyncio.to_thread(begun.wait, 10)
        opening.cancel()

    asyncio.run(open_and_leave())
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(10)


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

    async with opened_backend(backend):
        yield backend, next_user


def rename_over(path: Path, nickname: str) -> None:
    write_user(path.with_suffix(".new"), nickname)
    path.with_suffix(".new").rename(path)


def swap_link(path: Path, nickname: str) -> None:
    """Swap a link to the file, as Kubernetes swaps ``..data``."""
    write_user(path.with_suffix(f".{nickname}"), nickname)
    link = path.with_suffix(".new")
    link.symlink_to(f"users.{nickname}")
    link.rename(path)


@pytest.mark.parametrize("edit", [write_user, rename_over, swap_link])
async def test_each_edit_is_seen(path: Path, edit: Callable[[Path, str], None]) -> None:
    async with watched(path) as (_, next_user):
        edit(path, "bobby")
        await next_user("bobby")
        write_user(path, "carol")
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
        write_user(path, "bob")
        await next_user("bob")
    assert [each for each in caplog.messages if "not reloaded" in each and "can't" not in each]
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

    monkeypatch.setattr(backend_module, "FileSignature", SimpleNamespace(find=find))
    async with opened_backend(make_backend(Watched, path.parent, path=path.name)):
        await asyncio.wait_for(is_over.wait(), timeout=10)
    assert [len(each) for each in reads] == [5, 6, 11, 12]


async def test_a_file_written_during_its_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile, the old users are kept: the content may be cut."""
    read_bytes = Path.read_bytes

    def read_and_write(each: Path) -> bytes:
        content = read_bytes(each)
        write_user(each, "carol")
        return content

    async with watched(path) as (backend, next_user):
        write_user(path, "bob")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_and_write)
            await backend.reload()
        assert await backend.find(ByNickname("alice")) is not None
        await next_user("carol")


async def test_closing_ends_the_watch(path: Path) -> None:
    async with watched(path):
        (watch,) = (task for task in asyncio.all_tasks() if task.get_name() == "watch tested")
    assert watch.cancelled()


README = Path(idv_yaml.__file__).with_name("README.md").read_text(encoding="utf-8")
ENTRIES = [each for each in code_blocks(README, "yaml") if each.startswith("backends:")]


@pytest.mark.parametrize("entry", ENTRIES, ids=["short", "long"])
async def test_each_entry_of_the_readme_boots_with_each_fixture(tmp_path: Path, entry: str) -> None:
    (options,) = yaml_loader.read(entry.encode(), "README.md")["backends"]
    assert options["kind"] == "yaml"
    for fixture in {*code_blocks(README, "yaml")} - {*ENTRIES}:
        write(tmp_path / options["path"], fixture)
        async with opened_backend(make_backend(YamlBackend, tmp_path, **options)) as backend:
            assert await backend.find(ByNickname("alice")) == ALICE
