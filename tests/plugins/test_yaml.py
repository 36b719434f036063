"""The YAML backend: the promises of every backend, and what becomes of a bad file."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import idv_yaml
from idv_yaml import backend as backend_module
from idv_yaml.backend import YamlBackend
from support.databases.sqlite_databases import levels
from tornado_idv import ByCard, ByNickname, ConfigError, StartError, User, yaml_loader
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import open_backends

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    write(path, fixture(ALICE))
    return path


@asynccontextmanager
async def unwatched(path: Path) -> AsyncIterator[tuple[YamlBackend, list[str]]]:
    """A backend that reloads when the test calls it, and its reported changes."""
    backend = make_backend(YamlBackend, path.parent, path=path.name, watch="false")
    assert isinstance(backend, YamlBackend)
    changes: list[str] = []
    backend.on_change(lambda: changes.append("changed"))
    async with open_backends([backend]):
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
    ids=["missing", "folder", "symlink loop"],
)
async def test_what_is_no_file_stops_the_start(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(StartError, match=re.escape(message)):
        await make_backend(YamlBackend, tmp_path, path=name).open()


async def test_a_bad_fixture_stops_the_start_with_every_problem(path: Path) -> None:
    write(path, "users:\n- x\n- y\n")
    with pytest.raises(ConfigError) as caught:
        await make_backend(YamlBackend, path.parent, path=path.name).open()
    places = [(problem.file, problem.line) for problem in caught.value.problems]
    assert places == [(str(path), 2), (str(path), 3)]


async def test_a_reload_answers_from_the_new_users(path: Path) -> None:
    async with unwatched(path) as (backend, changes):
        write(path, fixture(ALICE))
        await backend.reload()
        assert changes == []
        write(path, fixture(BOB))
        await backend.reload()
        assert await backend.find(ByNickname("alice")) is None
        assert await backend.find(ByCard("0012345670")) == BOB
        assert changes == ["changed"]


async def test_a_file_that_has_lost_its_count_keeps_the_old_users(path: Path) -> None:
    """A reload knows that there was one, also after others that were rejected."""
    count, users = fixture(ALICE, BOB).split("\n", 1)
    write(path, f"{users}{count}\n")
    async with unwatched(path) as (backend, changes):
        for length in (len(users) // 2, len(users)):
            write(path, users[:length])
            await backend.reload()
            assert await backend.find(ByNickname("bob")) == BOB
        assert changes == []


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", "users.yaml:1:1: users: missing or empty"),
        ("users:\n- {nickname: canary canary}\n", "users.yaml:2:4: users[0].nickname: write"),
        (None, "users.yaml: cannot be read: No such file"),
    ],
    ids=["empty", "invalid", "missing"],
)
async def test_a_bad_file_is_reported_once_and_the_old_users_are_kept(
    path: Path, text: str | None, messages: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with unwatched(path) as (backend, changes):
        path.unlink() if text is None else write(path, text)
        for _ in range(3):
            await backend.reload()
        assert await backend.find(ByNickname("alice")) == ALICE
        assert changes == []
    (warning,) = levels(caplog, logging.WARNING)
    assert "backend tested: fixture rejected, keeping the old users: " in warning
    assert messages in warning
    assert "canary" not in caplog.text


async def test_each_bad_file_is_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with unwatched(path) as (backend, _):
        for text in (None, "", ""):
            path.unlink() if text is None else write(path, text)
            await backend.reload()
            write(path, fixture(ALICE))
            await backend.reload()
    assert len(levels(caplog, logging.WARNING)) == 3


@pytest.mark.parametrize("bad", [9, 30], ids=["ten problems", "31 problems"])
async def test_warning_is_limited(path: Path, bad: int, caplog: pytest.LogCaptureFixture) -> None:
    async with unwatched(path) as (backend, _):
        write(path, "users:\n" + "- x\n" * bad)
        await backend.reload()
    (warning,) = levels(caplog, logging.WARNING)
    assert warning.count("users.yaml:") == 10
    assert warning.endswith("; and 21 more" if bad == 30 else "nickname, card_number and plan")


@pytest.mark.parametrize("phase", ["open", "reload"])
def test_end_waits_for_no_file(path: Path, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """As at SIGTERM: a large file is read for many seconds."""
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def parse_for_long(*_: object, **__: object) -> None:
        begun.set()
        goes_on.wait(5)
        ended.set()

    async def cancel_amid() -> None:
        backend = make_backend(YamlBackend, path.parent, path=path.name, watch="false")
        assert isinstance(backend, YamlBackend)
        if phase == "reload":
            await backend.open()
            write(path, fixture(ALICE, BOB))
        monkeypatch.setattr(backend_module, "parse", parse_for_long)
        reading = asyncio.ensure_future(getattr(backend, phase)())
        await asyncio.to_thread(begun.wait, 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(cancel_amid())
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(10)


def examples() -> tuple[list[str], list[str]]:
    """The README's entries of ``backends:``, and its fixtures."""
    text = Path(idv_yaml.__file__).with_name("README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    entries = [block for block in blocks if block.startswith("backends:")]
    return entries, [block for block in blocks if block not in entries]


@pytest.mark.parametrize("entry", examples()[0], ids=["short", "long"])
@pytest.mark.parametrize("fixture", examples()[1], ids=["counted", "plain"])
async def test_every_example_of_the_readme_boots(tmp_path: Path, entry: str, fixture: str) -> None:
    """Every entry with every fixture; each of them knows alice."""
    (options,) = yaml_loader.read(entry.encode(), "README.md")["backends"]
    assert options["kind"] == "yaml"
    (tmp_path / options["path"]).write_text(fixture, encoding="utf-8")
    async with open_backends([make_backend(YamlBackend, tmp_path, **options)]) as (backend,):
        assert await backend.find(ByNickname("alice")) == ALICE
