"""A service with a key store: changes are effective while it runs, and faults are reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest

from support.databases.key_stores import add, garbage, make_store, open_store, read, record
from support.http.http_server import until
from support.http.repeated_requests import BODY, PATH, repeating
from support.processes.process import Invoke, eventually
from support.processes.service import (
    CONFIG,
    EXPIRED_KEY,
    KEY,
    USERS,
    Client,
    Reply,
    lookup_request,
    open_socket,
    serving,
    serving_here,
    write_config,
)
from tornado_idv.config.checks import key_conflicts
from tornado_idv.config.settings import AuthSettings
from tornado_idv.features.keys.editor import KeyEditor
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import KeyStore
from tornado_idv.keys.token import digest, issue
from tornado_idv.service import keys as service_keys

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
        assert service.shared.counters.responses["identify/url", "ok"].count > 900
        change(store, lambda opened: opened.revoke("shop", time.time()))
        changed_at = time.monotonic()
        eventually(lambda: revoked.statuses(since=changed_at)[401] > 0)
        rejected_at = time.monotonic()
        # On each connection more than once.
        eventually(lambda: revoked.statuses(since=rejected_at)[401] > 32)
    assert rejected_at - changed_at < 1.0
    assert revoked.statuses(since=rejected_at).keys() == {401}
    assert other.statuses().keys() == {200}


def test_every_rejected_key_gets_the_same_response(tmp_path: Path, store: Path) -> None:
    """Absent, malformed, mistyped, unknown, expired, not valid yet, revoked and disabled."""
    make_store(store)
    now = time.time()
    add(
        store,
        record("old", "token-of-old", expires=now - 1),
        record("early", "token-of-early", not_before=now + 1000),
        record("gone", "token-of-gone", revoked=now),
        record("off", "token-of-off", disabled=True),
    )
    values = [
        "Bearer",
        "Basic eDp5",
        "Bearer a b",
        f"Bearer {KEY[:-1]}{'01'[KEY[-1] == '0']}",
        f"Bearer {issue('x')}",
    ]
    values += [f"Bearer token-of-{name}" for name in ("old", "early", "gone", "off")]
    with serving(CONFIG_FILE, tmp_path) as service:
        client = Client(service.port)
        replies = [client.post(PATH, BODY, {"Authorization": value}) for value in values]
        replies.append(client.send("POST", PATH, {"Host": "x"}, BODY))
    for reply in replies:
        for name in ("date", "x-request-id"):
            assert reply.headers.pop(name)
        assert reply == replies[0]
        assert list(reply.headers) == list(replies[0].headers)
    assert (replies[0].status, replies[0].headers["www-authenticate"]) == (401, "Bearer")


def test_missing_scope_is_named_in_the_response(tmp_path: Path, store: Path) -> None:
    """As in RFC 6750, section 3.1."""
    make_store(store)
    add(store, record("shop", "token-of-shop", scopes=("identify:card",)))
    with serving(CONFIG_FILE, tmp_path) as service:
        reply = ask(Client(service.port), "token-of-shop")
    expected = 'Bearer error="insufficient_scope", scope="identify:url"'
    assert (reply.status, reply.headers["www-authenticate"]) == (403, expected)


def test_last_use_is_written_when_the_service_stops(tmp_path: Path, store: Path) -> None:
    token = make_store(store, "shop", "unused")["shop"]
    before = time.time()
    with serving(CONFIG_FILE, tmp_path) as service:
        assert ask(Client(service.port), token).status == 200
        assert read(store)["shop"].last_used is None
    shop, unused = read(store).values()
    assert shop.last_used is not None
    assert before <= shop.last_used <= time.time()
    assert unused.last_used is None


def test_last_use_is_written_while_the_service_runs(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_keys, "_WRITE_INTERVAL", 0.0)
    token = make_store(store, "shop")["shop"]
    with serving(CONFIG_FILE, tmp_path) as service:
        assert ask(Client(service.port), token).status == 200
        eventually(lambda: read(store)["shop"].last_used is not None)


def test_service_answers_while_the_store_fails(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with 401 where another process may have issued or renewed the key meanwhile."""
    token = make_store(store, "shop")["shop"]
    with serving(CONFIG_FILE, tmp_path) as service:
        client = Client(service.port)
        with garbage(store):
            eventually(lambda: ask(client, issue("shop")).status == 503)
            reply = ask(client, EXPIRED_KEY)
            assert (reply.status, reply.code) == (503, "backend_unavailable")
            assert reply.headers["retry-after"] == "1"
            assert ask(client, token).status == 200
            assert ask(client, "").status == ask(client, "no token68").status == 401
        eventually(lambda: ask(client, issue("shop")).status == 401)
        assert ask(client, EXPIRED_KEY).status == 401
    assert [each.levelname for each in caplog.records if "keys.db" in each.getMessage()] == [
        "ERROR"
    ]


def test_key_is_undetermined_while_the_store_hangs(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, ended = make_store(store, "shop")["shop"], Event()
    with serving(CONFIG_FILE, tmp_path) as service:
        client = Client(service.port)
        with monkeypatch.context() as patched:
            patched.setattr(StoreFollower, "poll", lambda _: ended.wait(10))
            try:
                eventually(lambda: ask(client, issue("shop")).status == 503)
                assert ask(client, token).status == 200
            finally:
                ended.set()
        eventually(lambda: ask(client, issue("shop")).status == 401)


async def test_key_issued_while_the_process_was_stopped_is_not_invalid(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request is read before the store."""
    monkeypatch.setattr(service_keys, "_MAX_AGE", 0.2)
    make_store(store, "shop")
    async with serving_here(CONFIG_FILE, tmp_path) as service:
        with open_socket(service.port) as sock:
            await asyncio.sleep(0.1)
            add(store, record("new", "token-of-a-new-key"))
            sock.sendall(lookup_request("@alice", "token-of-a-new-key"))
            time.sleep(0.2)  # noqa: ASYNC251 - stops the event loop
            response = await asyncio.to_thread(sock.recv, 4096)
    assert response.startswith(b"HTTP/1.1 503 ")


async def test_store_that_responds_leaves_no_key_undetermined(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(store, "shop")
    monkeypatch.setattr(service_keys, "_POLL_INTERVAL", 0.02)
    polls = 0

    async def respond(call: Callable[..., object], *arguments: object) -> object:
        nonlocal polls
        polls += 1
        return call(*arguments)

    async with service_keys.Keys(Kinds()).opened(AuthSettings.model_construct(store=store)) as keys:
        monkeypatch.setattr(keys.store, "in_thread", respond)
        while polls < 5:
            assert time.monotonic() < keys.ring.complete_until
            await asyncio.sleep(0)


async def test_reload_reads_many_keys_beside_the_event_loop(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(store, "shop")
    merge, threads = KeyRing.merged, set()

    def merged(ring: KeyRing, stored: Sequence[ApiKey], configured: Sequence[ApiKey]) -> Any:
        threads.update({current_thread()} if stored else ())
        return merge(ring, stored, configured)

    monkeypatch.setattr(KeyRing, "merged", merged)
    keys, settings = service_keys.Keys(Kinds()), AuthSettings.model_construct(store=store)
    (await keys.prepare(settings)).commit()
    prepared = await keys.prepare(settings)
    assert keys.store is not None
    assert len(threads - {main_thread()}) == len(threads) > 0
    add(store, record("new", "token-of-new"))
    await keys.store.in_thread(keys.store.read)
    prepared.commit()
    assert keys.ring.ids == {"shop", "new"}
    await keys.close()


def test_unexpected_error_does_not_end_the_following(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = make_store(store, "shop")["shop"]
    with serving(CONFIG_FILE, tmp_path) as service:
        with monkeypatch.context() as patched:
            patched.setattr(KeyStore, "api_keys", lambda *_: 1 / 0)
            change(store, lambda opened: opened.set_disabled("shop", disabled=True))
            eventually(lambda: "reading or writing the key store failed" in caplog.text)
        eventually(lambda: ask(Client(service.port), token).status == 401)
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, store: Path) -> Iterator[Event]:
    """Lets each reading of ``keys.db`` hang; set while one does."""
    monkeypatch.setattr(service_keys, "_STOP_TIMEOUT", 0.05)
    read, begun, ended = StoreFollower.read, Event(), Event()

    def hang(follower: StoreFollower) -> None:
        if follower.location.setting != store:
            return read(follower)
        begun.set()
        ended.wait(60)
        return None

    monkeypatch.setattr(StoreFollower, "read", hang)
    yield begun
    ended.set()


async def test_start_is_cancelled_while_reading_the_store_hangs(
    hanging: Event, store: Path
) -> None:
    opening = service_keys.Keys(Kinds()).opened(AuthSettings.model_construct(store=store))
    task = asyncio.create_task(opening.__aenter__())
    await asyncio.to_thread(hanging.wait, 5)
    task.cancel()
    await asyncio.wait([task], timeout=2)
    assert task.cancelled()


async def test_neither_another_store_nor_the_stop_waits_for_a_store_that_hangs(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(service_keys, "_POLL_INTERVAL", 0.0)
    make_store(store)
    token, other = digest(make_store(tmp_path / "other.db", "web")["web"]), tmp_path / "other.db"
    settings = AuthSettings.model_construct(store=store)
    async with asyncio.timeout(5), service_keys.Keys(Kinds()).opened(settings) as keys:
        hanging = request.getfixturevalue("hanging")
        await asyncio.to_thread(hanging.wait, 5)
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
        (None, 3, "{}: there is no key store; restore it, or create the first one"),
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
    store.chmod(0o640)
    open_to_others = invoke("check", "--config", config)
    assert open_to_others.exit_code == 0
    assert "auth.store: other users have access to the key store" in open_to_others.stderr
