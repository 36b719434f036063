"""Comparisons of a shadow reach their file, and no failure of the file reaches a lookup."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from idv_postgres.options import PostgresOptions
from support.http.http_server import until
from tornado_idv.errors import StartError
from tornado_idv.features.shadow import state as shadow_state
from tornado_idv.features.shadow.file import ShadowFile
from tornado_idv.features.shadow.state import ShadowState, scope_of_users
from tornado_idv.kit.comparison import Comparison
from tornado_idv.model import ByCard, ByNickname, User

ALICE = User("Free", "4000", "alice")
MISSING = Comparison("missing", (), ALICE)


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_state, "_INTERVAL", 0.01)
    monkeypatch.setattr(shadow_state, "_MIN_INTERVAL", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shadow.db"


def started(path: Path, clock: Callable[[], float] = lambda: 1.0) -> ShadowState:
    state = ShadowState(path, "new", clock=clock)
    state.follow(b"old")
    state.start()
    return state


def users(path: Path) -> int:
    """Return the number of users in the file; -1 until it has been written."""
    if not path.exists() or not path.stat().st_size:
        return -1
    contents = ShadowFile(path, "new").read()
    return contents.matches + len(contents.differing)


async def test_mismatches_are_written_at_once_and_others_in_a_few_seconds_or_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = started(path)
    await until(lambda: users(path) == 0)  # before anything is compared
    state.record(ByNickname("alice"), MISSING, 1.0)
    await until(lambda: users(path) == 1)
    await state.close()
    before = path.read_bytes()
    state.record(ByNickname("bob"), MISSING, 1.0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    async with asyncio.timeout(30):
        await asyncio.gather(*others, return_exceptions=True)
    assert path.read_bytes() == before  # it is closed
    monkeypatch.setattr(shadow_state, "_INTERVAL", 1e6)
    state = started(path)
    for number in range(3):  # a process that is killed then has lost matches alone
        user = User("Free", str(number), f"user{number}")
        state.record(ByNickname(user.nickname), Comparison("missing", (), user), 2.0)
        await until(lambda count=number + 2: users(path) == count)
    state.record(ByNickname("bob"), Comparison("match", (), User("Free", "9", "bob")), 2.0)
    await state.close()
    totals = ShadowFile(path, "new").read().totals
    assert (users(path), totals) == (5, {"missing": 4, "match": 1})


@pytest.mark.parametrize("scope", [b"new", b"old"])
async def test_comparisons_from_before_the_reload_of_a_worker_do_not_count(
    path: Path, monkeypatch: pytest.MonkeyPatch, scope: bytes
) -> None:
    """Another worker has written with the new configuration already."""
    monkeypatch.setattr(shadow_state, "_INTERVAL", 1e6)
    now = [1.0]
    first, second = (started(path, lambda: now[0]) for _ in range(2))
    await until(lambda: users(path) == 0)
    first.follow(scope)
    await first.close()
    now[0] = 2.0
    second.record(ByNickname("alice"), Comparison("match", (), ALICE), 2.0)
    now[0] = 3.0
    second.follow(scope)
    await second.close()
    assert users(path) == (scope == b"old")


@pytest.mark.parametrize(("is_being_written", "failures"), [(True, 9), (True, 1), (False, 9)])
async def test_comparisons_begin_again_if_the_last_ones_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_being_written: bool, failures: int
) -> None:
    """Otherwise the match of a user who is missing now would count after the next start."""
    writing, held, failing = Event(), Event(), iter(range(failures))

    class FullDisk(sqlite3.Connection):
        """A database without room for a journal."""

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            journal = super().execute("PRAGMA journal_mode").fetchone()
            if sql == "COMMIT" and journal != ("memory",) and next(failing, None) is not None:
                writing.set()
                held.wait()
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *parameters)

    state = started(path)
    state.record(ByNickname("alice"), Comparison("match", (), ALICE), 1.0)
    await state.close()
    assert users(path) == 1
    state = started(path, lambda: 2.0)
    await until(lambda: ShadowFile(path, "new").read().written == 2.0)
    full = partial(sqlite3.connect, factory=FullDisk)
    with monkeypatch.context() as patch:
        patch.setattr("tornado_idv.features.shadow.file.sqlite3.connect", full)
        state.record(ByNickname("alice"), MISSING, 2.0)
        if is_being_written:
            await until(writing.is_set)
        closing = asyncio.create_task(state.close())
        await asyncio.sleep(0)
        held.set()
        await closing
    assert users(path) == (failures == 1)


async def test_removed_file_is_made_again(path: Path) -> None:
    """So that comparisons of before it do not count."""
    now = [1.0]
    state = started(path, clock=lambda: now[0])
    state.record(ByNickname("alice"), MISSING, 1.0)
    await until(lambda: users(path) == 1)
    now[0] = 2.0
    await until(lambda: ShadowFile(path, "new").read().written == 2.0)
    path.unlink()
    await until(lambda: users(path) == 0)
    state.record(ByNickname("alice"), MISSING, 1.0)
    await state.close()
    assert users(path) == 0


async def test_unexpected_error_is_logged_once_without_values_and_nothing_is_lost(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    attempts: list[object] = []

    def failing(*_: object, **__: object) -> None:
        attempts.append(None)
        raise KeyError("alice")

    with monkeypatch.context() as patch:
        patch.setattr(ShadowFile, "write", failing)
        state = started(path)
        state.record(ByNickname("alice"), MISSING, 1.0)
        await until(lambda: len(attempts) > 3)
        assert "in failing" in (state.problem or "")
    await until(lambda: state.problem is None)
    await state.close()
    assert users(path) == 1
    failed, again = caplog.records
    assert "in failing" in failed.getMessage()
    assert "alice'" not in failed.getMessage()
    assert again.getMessage() == "backend new: shadow.state: is written again"
    assert (failed.levelname, again.levelname) == ("ERROR", "INFO")


@pytest.mark.parametrize(
    ("before", "during", "fails", "written"),
    [
        (100, 0, False, [(100, True), (0, True)]),
        (101, 0, False, [(100, False), (0, True)]),
        (101, 0, True, [(100, False), (100, False), (0, True)]),
        (50, 50, True, [(50, True), (100, True), (0, True)]),
        (50, 51, True, [(50, True), (100, False), (0, True)]),
        (1, 101, False, [(1, True), (100, False), (0, True)]),
    ],
)
async def test_dropped_comparisons_are_reported_to_the_file(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: int,
    during: int,
    fails: bool,
    written: list[tuple[int, bool]],
) -> None:
    """Comparisons that wait are bounded: ``before`` the first write, and ``during`` it."""
    monkeypatch.setattr(shadow_state, "_MAX_WAITING", 100)
    state = ShadowState(path, "new")
    calls: list[tuple[int, bool]] = []

    def record(count: int) -> None:
        for _ in range(count):
            state.record(ByNickname("alice"), Comparison("match", (), ALICE), 1.0)

    def write(_: object, waiting: list[object], *__: object, **options: Any) -> None:
        calls.append((len(waiting), options["is_complete"]))
        if len(calls) == 1:
            record(during)
            if fails:
                raise StartError("the disk is full")

    monkeypatch.setattr(ShadowFile, "write", write)
    record(before)
    state.start()
    await until(lambda: len(calls) >= len(written))
    await state.close()
    assert calls[: len(written)] == written


async def test_file_that_hangs_delays_neither_lookups_nor_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, held = Event(), Event()
    monkeypatch.setattr(ShadowFile, "write", lambda *_, **__: writing.set() or held.wait())
    monkeypatch.setattr(shadow_state, "_CLOSE_TIMEOUT", 0.05)
    state = started(path)
    await until(writing.is_set)
    began = time.monotonic()
    state.record(ByNickname("alice"), MISSING, 1.0)
    await state.close()
    assert time.monotonic() - began < 5
    held.set()


def options(**given: Any) -> PostgresOptions:
    given = {"dsn": "postgresql://idv:one@db1/club", **given}
    return PostgresOptions(name="new", kind="postgres", **given)


@pytest.mark.parametrize(
    ("given", "is_other"),
    [
        ({"dsn": "postgresql://idv:two@db1/club"}, False),
        ({"timeout": "3s", "shadow": {"sample": "7%"}, "breaker": {"failures": 9}}, False),
        ({"cache_ttl": "9s", "negative_ttl": "9s", "max_concurrent": 9}, False),
        ({"dsn": "postgresql://idv:one@db1/members"}, True),
        ({"match": "@.*"}, True),
    ],
)
def test_scope_is_that_of_the_users(given: dict[str, Any], *, is_other: bool) -> None:
    scope = scope_of_users([options(), options()])
    assert (scope_of_users([options(), options(**given)]) != scope) == is_other


async def test_problem_of_the_shadow_is_in_the_file(path: Path) -> None:
    state = ShadowState(path, "new")
    problem: str | None = "not open yet"
    state.start(lambda: problem)
    await until(lambda: users(path) == 0)
    assert ShadowFile(path, "new").read().problem == "not open yet"
    problem = None
    await until(lambda: ShadowFile(path, "new").read().problem is None)
    problem = "the breaker is open"
    await state.close()
    assert ShadowFile(path, "new").read().problem is None  # of a service that has stopped


async def test_what_did_not_match_is_due_by_nickname_or_card(path: Path) -> None:
    state, queries = started(path), {ByNickname("bob"), ByCard("4000")}
    await until(lambda: users(path) == 0)
    for query in queries:
        state.record(query, MISSING, 30.0)
    await until(lambda: users(path) == 1)
    assert {*await state.due(60.0, 10)} == queries
    await state.close(discard=True)
    assert users(path) == 0
    path.unlink()
    assert await state.due(60.0, 10) == []
