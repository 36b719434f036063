"""The admin listener of several workers, with a supervisor that a test plays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from tornado_idv.admin.listener import admin_listening
from tornado_idv.config.load import load
from tornado_idv.config.settings import AuthSettings, Settings
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.keys import Keys
from tornado_idv.service.sockets import bind, port_of
from tornado_idv.workers.admin_process import WorkerOperations
from tornado_idv.workers.channel import Channel, Decoder, Message, encode

CONFIG = """\
profile_sites: [https://profiles.example]
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
SHARED = f"""\
{CONFIG}shared_cache: {{kind: redis, url: 'redis://127.0.0.1', secret: {"x" * 32}}}
"""
PURGE = ("POST", "/cache/purge", b'{"all": true}')
EXPLAIN = ("POST", "/explain", b'{"input": "@alice"}')
READY = ("GET", "/health/ready", None)
STATUS = ("GET", "/status.json", None)


@asynccontextmanager
async def answering(
    folder: Path, reply: Callable[[Message], Message], config: str = CONFIG
) -> AsyncIterator[Callable[..., asyncio.Future[HTTPResponse]]]:
    """Serve the admin listener, whose commands ``reply`` responds to; yield a client."""
    (folder / "config.yaml").write_text(config)
    settings = load(folder / "config.yaml", installed_kinds(plugin_manager()), {})
    ours, theirs = socket.socketpair()
    channel, loop = Channel(None), asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: channel, sock=theirs)
    reader, writer = await asyncio.open_unix_connection(sock=ours)

    async def supervise() -> None:
        decoder = Decoder()
        while data := await reader.read(65536):
            for message in decoder.feed(data):
                replied = {"op": "reply", "id": message["id"], "replies": [], "overview": None}
                writer.write(encode({**replied, **reply(message)}))

    task = asyncio.create_task(supervise())
    sockets = bind("admin", "127.0.0.1", 0)
    url = f"http://127.0.0.1:{port_of(sockets)}"
    client = AsyncHTTPClient(force_instance=True)

    def fetch(method: str, path: str, body: bytes | None) -> asyncio.Future[HTTPResponse]:
        headers = {"Content-Type": "application/json"}
        request = HTTPRequest(f"{url}{path}", method, headers, body)
        return client.fetch(request, raise_error=False)

    try:
        async with Keys(Kinds()).opened(AuthSettings()) as keys:
            operations = WorkerOperations(channel, settings, keys)
            async with admin_listening(sockets, "127.0.0.1", operations):
                yield fetch
    finally:
        client.close()
        await channel.close()
        await task
        writer.close()


@pytest.mark.parametrize(
    ("replies", "status", "text"),
    [
        ([], 200, b'"ok"'),
        ([{"result": True}, {"ended": True}], 200, b'"ok"'),
        ([{"result": True}, {"error": "no reply in time"}], 503, b"worker 2 (pid 12): no reply in"),
    ],
    ids=["no worker", "one has ended", "one did not reply"],
)
async def test_purge_is_done_only_if_every_worker_has_done_it(
    tmp_path: Path, replies: list[Message], status: int, text: bytes
) -> None:
    named = [{"name": f"worker {i}", "pid": 10 + i, **each} for i, each in enumerate(replies, 1)]
    async with answering(tmp_path, lambda _: {"replies": named}) as fetch:
        response = await fetch(*PURGE)
    assert response.code == status
    assert text in response.body
    assert (b"worker_failed" in response.body) is (status == 503)


@pytest.mark.parametrize(
    ("results", "status"),
    [([True, True], 200), ([False, True], 200), ([False, False], 503), ([], 503)],
    ids=["delivered", "delivered by one", "pending", "no worker"],
)
async def test_purge_is_done_only_if_the_shared_cache_has_received_it(
    tmp_path: Path, results: list[bool], status: int
) -> None:
    def reply(message: Message) -> Message:
        if message["command"] == "report":
            return {"overview": overview("ready")}
        return {"replies": [{"result": each} for each in results]}

    async with answering(tmp_path, reply, SHARED) as fetch:
        response = await fetch(*PURGE)
    assert (response.code, b"purge_pending" in response.body) == (status, status == 503)


async def test_shared_cache_that_a_reload_removes_is_in_use_until_the_restart(
    tmp_path: Path,
) -> None:
    class Undelivered(Channel):
        async def ask(self, *_: object) -> Message:
            return {"replies": [{"result": False}]}

    def settings(config: str) -> Settings:
        (tmp_path / "config.yaml").write_text(config)
        return load(tmp_path / "config.yaml", installed_kinds(plugin_manager()), {})

    keys = Keys(installed_kinds(plugin_manager()))
    operations = WorkerOperations(Undelivered(None), settings(SHARED), keys)
    (await operations.prepare(settings(CONFIG))).commit()
    assert await operations.purge({}) is False


async def test_explain_without_a_worker_is_503(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Which is no unhandled exception."""

    def reply(message: Message) -> Message:
        if message["command"] == "report":
            return {"overview": overview("ready")}
        return {"replies": [{"name": "worker 1", "pid": 11, "ended": True}]}

    async with answering(tmp_path, reply) as fetch:
        assert (await fetch(*EXPLAIN)).code == 503
    assert caplog.messages == []


def overview(phase: str, *missing: str) -> Message:
    return {
        "phase": phase,
        "pid": 1,
        "started_at": 0.0,
        "restarts": 7,
        "loaded_at": 0.0,
        "last_reload": None,
        "missing": list(missing),
        "ended": Counters().to_record(),
        "workers": [
            {
                "name": "worker 1",
                "pid": 11,
                "phase": "starting",
                "started_at": 0.0,
                "heartbeat_age": 0.5,
                "requests": 0,
                "report": None,
            }
        ],
    }


@pytest.mark.parametrize(
    ("phase", "missing", "status", "text"),
    [
        ("ready", [], 200, b'{"status":"ready","degraded":[]}'),
        ("ready", ["worker 1"], 200, b'{"status":"degraded","degraded":["worker 1"]}'),
        ("starting", ["worker 1"], 503, b'{"status":"starting","degraded":["worker 1"]}'),
        ("draining", [], 503, b'{"status":"draining","degraded":[]}'),
    ],
)
async def test_readiness_is_that_of_at_least_one_worker(
    tmp_path: Path, phase: str, missing: list[str], status: int, text: bytes
) -> None:
    async with answering(tmp_path, lambda _: {"overview": overview(phase, *missing)}) as fetch:
        response = await fetch(*READY)
        assert (response.code, response.body) == (status, text)
        assert b'"worker_restarts":7' in (await fetch(*STATUS)).body
        metrics = (await fetch("GET", "/metrics", None)).body
    assert b"idv_worker_restarts_total 7.0" in metrics
    shown = b'idv_degraded{part="worker 1"} 1.0' in metrics
    assert shown is bool(missing)


@pytest.mark.slow
async def test_supervisor_that_does_not_respond_is_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WorkerOperations._ask.__kwdefaults__, "wait", 0.01)
    async with answering(tmp_path, lambda _: {"id": 0}) as fetch:
        response = await fetch(*READY)
    assert (response.code, b"The supervisor does not respond" in response.body) == (503, True)


async def test_reload_replaces_what_the_listener_shows_of_the_settings(tmp_path: Path) -> None:
    path, kinds = tmp_path / "config.yaml", installed_kinds(plugin_manager())
    path.write_text(CONFIG)
    before = load(path, kinds, {})
    path.write_text(CONFIG.replace("name: users", "name: members"))
    async with Keys(Kinds()).opened(AuthSettings()) as keys:
        operations = WorkerOperations(Channel(None), before, keys)
        prepared = await operations.prepare(load(path, kinds, {}))
        assert operations.backends == ["users"]
        prepared.commit()
        assert operations.backends == ["members"]
