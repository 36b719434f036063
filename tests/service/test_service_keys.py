"""A service with a key store: changes are effective while it runs, and faults are reported."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import SimpleNamespace
from typing import Any

import pytest

from idv_sqlite import idv_kinds
from support.databases.key_stores import add, garbage, make_store, open_store, read, record
from support.fakes.clock_and_backends import Ticker
from support.http.http_server import until
from support.http.repeated_requests import BODY, PATH, repeating
from support.processes.process import Invoke, eventually
from support.processes.service import (
    CONFIG,
    EXPIRED_KEY,
    USERS,
    Client,
    Reply,
    serving,
    write_config,
)
from tornado_idv.config.checks import key_conflicts
from tornado_idv.config.settings import AuthSettings
from tornado_idv.features.keys.editor import KeyEditor
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import KeyStore
from tornado_idv.keys.token import digest, issue
from tornado_idv.service import keys as service_keys
from tornado_idv.service.keys import StoreFollower

STORED = CONFIG.replace("auth:\n", "auth:\n  store: keys.db\n")
CONFIG_FILE = STORED + USERS


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def ask(client: Client, token: str) -> Reply:
    return client.post(PATH, BODY, {"Authorization": f"Bearer {token}"})


def change(store: Path, make: Callable[[KeyEditor], object]) -> None:
    with open_store(store) as opened:
        make(opened)


@pytest.mark.slow
def test_revoked_key_gets_no_200_after_a_second(tmp_path: Path, store: Path) -> None:
    """Though the fast path responds to its requests, some 30,000 a second."""
    tokens = make_store(store, "shop", "partner")
    with (
        serving(CONFIG_FILE, tmp_path) as service,
        repeating(service.port, tokens["shop"], 32, pause=0) as revoked,
        repeating(service.port, tokens["partner"]) as other,
    ):
        eventually(lambda: revoked.statuses()[200] >= 1_000)
        assert service.counters.responses["identify/url", "ok"].count > 900
        change(store, lambda opened: opened.revoke("shop", time.time()))
        changed_at = time.monotonic()
        eventually(lambda: revoked.statuses(since=changed_at)[401] > 0)
        rejected_at = time.monotonic()
        # On each connection more than once.
        eventually(lambda: revoked.statuses(since=rejected_at)[401] > 32)
    assert rejected_at - changed_at < 1.0
    assert revoked.statuses(since=rejected_at).keys() == {401}
    assert other.statuses().keys() == {200}


def test_stored_key_is_refused_as_any_other(tmp_path: Path, store: Path) -> None:
    """The response to a rejected key tells no reason; RFC 6750, section 3.1, has the scope."""
    make_store(store)
    now = time.time()
    rejected: dict[str, dict[str, object]] = {
        "old": {"expires": now - 1},
        "early": {"not_before": now + 1000},
        "gone": {"revoked": now},
        "off": {"disabled": True},
    }
    add(store, *(record(name, f"token-of-{name}", **each) for name, each in rejected.items()))
    add(store, record("shop", "token-of-shop", scopes=("identify:card",)))
    with serving(CONFIG_FILE, tmp_path) as service:
        client = Client(service.port)
        unknown, *replies = (ask(client, f"token-of-{name}") for name in ("none", *rejected))
        reply = ask(client, "token-of-shop")
    for each in replies:
        each.headers.update({name: unknown.headers[name] for name in ("date", "x-request-id")})
        assert each == unknown
    assert (unknown.status, unknown.headers["www-authenticate"]) == (401, "Bearer")
    expected = 'Bearer error="insufficient_scope", scope="identify:url"'
    assert (reply.status, reply.headers["www-authenticate"]) == (403, expected)


@contextmanager
def hanging(path: Path) -> Iterator[Event]:
    """Let each reading of one store hang; yield what is set while one does."""
    read, begun, ended = StoreFollower.read, Event(), Event()

    def hang(follower: StoreFollower) -> None:
        if follower.location.setting != path:
            read(follower)
            return
        begun.set()
        ended.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service_keys, "_STOP_TIMEOUT", 0.05)
        patch.setattr(StoreFollower, "read", hang)
        try:
            yield begun
        finally:
            ended.set()


@pytest.mark.parametrize(("fault", "logged"), [(garbage, ["ERROR"]), (hanging, [])])
def test_service_answers_while_the_store_fails(
    tmp_path: Path,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Path], AbstractContextManager[object]],
    logged: list[str],
) -> None:
    """Not with 401 where another process may have issued or renewed the key meanwhile."""
    token = make_store(store, "shop")["shop"]
    with serving(CONFIG_FILE, tmp_path) as service:
        client, ring = Client(service.port), service.keys.ring
        opened = ring.complete_until
        eventually(lambda: ring.complete_until > opened)  # after the next read of the store
        with fault(store):
            eventually(lambda: ask(client, issue("shop")).status == 503)
            reply = ask(client, EXPIRED_KEY)
            assert (reply.status, reply.code) == (503, "backend_unavailable")
            assert reply.headers["retry-after"] == "1"
            assert ask(client, token).status == 200
            assert ask(client, "").status == ask(client, "no token68").status == 401
        eventually(lambda: ask(client, issue("shop")).status == 401)
        assert ask(client, EXPIRED_KEY).status == 401
    assert [each.levelname for each in caplog.records if "keys.db" in each.getMessage()] == logged


async def test_store_that_responds_leaves_no_key_undetermined(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is as old as the begin of the read. Uses of keys are written once a minute."""
    make_store(store, "shop")
    monkeypatch.setattr(service_keys, "_POLL_INTERVAL", 0.0)
    ticker, calls = Ticker(), Counter[str]()
    monkeypatch.setattr(service_keys, "time", SimpleNamespace(monotonic=ticker))

    async def respond(call: Callable[..., object], *arguments: object) -> object:
        ticker.now += 0.4
        calls[call.__name__] += 1
        return call(*arguments)

    settings = AuthSettings.model_construct(store=store)
    async with service_keys.Keys(idv_kinds()).opened(settings) as keys:
        monkeypatch.setattr(keys.store, "in_thread", respond)
        keys.ring.last_used["shop"] = 7.0
        while calls["poll"] < 170:
            assert ticker.now < keys.ring.complete_until <= ticker.now + (0.6 if calls else 1)
            await asyncio.sleep(0)
        assert calls["write_last_used"] == 1
        assert read(store)["shop"].last_used == 7.0


async def test_reload_reads_many_keys_beside_the_event_loop(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(store, "shop")
    merge, threads = KeyRing.merged, set()

    def merged(ring: KeyRing, stored: Sequence[ApiKey], configured: Sequence[ApiKey]) -> Any:
        threads.update({current_thread()} if stored else ())
        return merge(ring, stored, configured)

    monkeypatch.setattr(KeyRing, "merged", merged)
    keys, settings = service_keys.Keys(idv_kinds()), AuthSettings.model_construct(store=store)
    (await keys.prepare(settings)).commit()
    (await keys.prepare(settings)).commit()
    assert threads
    assert main_thread() not in threads
    await keys.close()


def test_unexpected_error_does_not_end_the_following(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = make_store(store, "shop")["shop"]
    with serving(CONFIG_FILE, tmp_path) as service:
        client = Client(service.port)
        with monkeypatch.context() as patched:
            patched.setattr(KeyStore, "api_keys", lambda *_: 1 / 0)
            change(store, lambda opened: opened.set_disabled("shop", disabled=True))
            eventually(lambda: "reading or writing the key store failed" in caplog.text)
            eventually(lambda: ask(client, issue("shop")).status == 503)
        eventually(lambda: ask(client, token).status == 401)
    assert "ZeroDivisionError" in caplog.text


async def test_start_is_cancelled_while_reading_the_store_hangs(store: Path) -> None:
    opening = service_keys.Keys(idv_kinds()).opened(AuthSettings.model_construct(store=store))
    with hanging(store) as begun:
        task = asyncio.create_task(opening.__aenter__())
        await asyncio.to_thread(begun.wait, 5)
        task.cancel()
        await asyncio.wait([task], timeout=2)
        assert task.cancelled()


async def test_neither_another_store_nor_the_stop_waits_for_a_store_that_hangs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_keys, "_POLL_INTERVAL", 0.0)
    make_store(store)
    token, other = digest(make_store(tmp_path / "other.db", "web")["web"]), tmp_path / "other.db"
    settings = AuthSettings.model_construct(store=store)
    opened = service_keys.Keys(idv_kinds()).opened(AuthSettings())
    with ExitStack() as stack:
        async with asyncio.timeout(5), opened as keys:
            (await keys.prepare(settings)).commit()  # from now on, a store is followed
            begun = stack.enter_context(hanging(store))
            await asyncio.to_thread(begun.wait, 5)
            (await keys.prepare(AuthSettings.model_construct(store=other))).commit()
            assert keys.ring.find(token)
            change(other, lambda opened: opened.revoke("web", time.time()))
            await until(lambda: keys.ring.find(token) is None)
    assert f"{store}: the key store does not respond" in caplog.text


def test_token_that_a_stored_key_has_is_found_behind_the_first_configured_key() -> None:
    configured = [ApiKey("first", digest("first")), ApiKey("second", digest("second"))]
    (error,) = key_conflicts(configured, [ApiKey("copy", digest("second"))], "keys.db")
    assert error.steps == ("auth", "keys", 1)
    assert "the key copy in the key store keys.db has the token of second" in str(error)


@pytest.mark.parametrize(
    ("key_id", "code", "message"),
    [
        ("caller", 1, "config.yaml:6:8: auth.keys[0].id: the key store {} has a key caller, too"),
        (None, 3, "auth.store: {}: there is no key store; restore it, or create the first one"),
    ],
    ids=["conflict", "missing"],
)
def test_problem_of_the_store_is_reported(
    invoke: Invoke, store: Path, key_id: str | None, code: int, message: str
) -> None:
    config = write_config(store.parent, CONFIG_FILE)
    if key_id is not None:
        make_store(store, key_id)
    served, checked = (invoke(name, "--config", config) for name in ("serve", "check"))
    assert (served.exit_code, checked.exit_code) == (code, 1)
    for done in (served, checked):
        assert message.format(store) in done.stderr
        assert "Traceback" not in done.stderr
    assert store.exists() is (key_id is not None)


def test_check_reports_the_store(invoke: Invoke, tmp_path: Path, store: Path) -> None:
    config = write_config(tmp_path, CONFIG_FILE)
    make_store(store, "shop")
    good = invoke("check", "--config", config)
    assert (good.exit_code, good.stderr) == (0, "")
    assert f"key store      {store}\n" in good.stdout
    for mode in (0o640, 0o604):
        store.chmod(mode)
        open_to_others = invoke("check", "--config", config)
        assert open_to_others.exit_code == 0
        assert "auth.store: other users have access to the key store" in open_to_others.stderr
