"""A stop lets the requests in flight finish."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.http.http_server import until
from support.processes.process import eventually, running
from support.processes.reloads import config, reloadable
from support.processes.service import (
    CONFIG,
    USERS,
    Client,
    Reply,
    begun_request,
    lookup_request,
    write_config,
)


async def test_drain_does_not_wait_for_a_disconnected_client(tmp_path: Path) -> None:
    """Neither for the rest of its body, nor for the backend."""
    async with reloadable(tmp_path, config(server="drain: {timeout: 20s, delay: 60s}")) as harness:
        async with harness.connected() as half, harness.connected() as whole:
            half.writer.write(lookup_request("@alice")[:-5])
            backend = await harness.held(whole)
            for each in (half, whole):
                each.writer.transport.abort()
        assert await asyncio.wait_for(harness.service.drain(delay=False), 10)
        backend.gate.set()


async def test_request_in_flight_closes_its_connection_while_the_drain_is_delayed(
    tmp_path: Path,
) -> None:
    async with (
        reloadable(tmp_path, config(server="drain: {delay: 20s}")) as harness,
        harness.connected() as client,
    ):
        for name in ("@alice", "@carol"):  # the second head is learned
            assert (await client.ask(name)).status == 200
        backend = await harness.held(client, "@bobby")
        drain = asyncio.create_task(harness.service.drain())
        await until(lambda: harness.service.draining)
        backend.gate.set()
        assert (await client.read()).status == 200
        assert await asyncio.wait_for(client.reader.read(), 10) == b""
        drain.cancel()


@pytest.mark.slow
def test_process_ends_while_a_request_does_not(tmp_path: Path) -> None:
    text = CONFIG.replace("port: 0", "port: 0, drain: {timeout: 50ms}") + USERS
    with running(write_config(tmp_path, text)) as service, begun_request(Client(service.port)):
        service.stop()
    assert "requests unanswered after the drain timeout" in service.read_log()
    assert '"drained":false' in service.read_log().replace(" ", "")
    assert "Traceback" not in service.read_log()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["", "fast_path: false", "workers: 2"])
def test_load_balancer_learns_of_a_stop_while_drain_is_delayed(tmp_path: Path, server: str) -> None:
    """The health check fails, and each response closes its connection, also for known clients."""
    settings = ["port: 0", "health_path: /healthz", "drain: {delay: 20s}", "idle_timeout: 20s"]
    text = CONFIG.replace("port: 0, body_timeout: 500ms, idle_timeout: 1s", ", ".join(settings))
    text = text.replace("{port", f"{{{server + ', ' if server else ''}port") + USERS
    text += "logging: {health_checks: false}\n"  # of failed ones, there are lines
    health = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(write_config(tmp_path, text)) as service, ExitStack() as opened:
        client = Client(service.port)
        kept = [opened.enter_context(client.connection()) for _ in range(4)]
        for each in kept:
            for _ in range(3):
                each.send(lookup_request("@alice"))
                assert outcome(each.read_reply()) == (200, None)
        assert outcome(*client.raw(health)) == (200, None)
        service.send_signal()
        eventually(lambda: "stopping" in service.read_log())
        service.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration not reloaded" in service.read_log())
        # Of each worker, to which the kernel distributes the connections.
        eventually(lambda: all(client.raw(health)[0].status == 503 for _ in range(16)))
        late = [opened.enter_context(client.connection()) for _ in range(4)]
        for each in kept + late:
            each.send(lookup_request("@alice"))
            assert outcome(each.read_reply()) == (200, "close")
            assert each.read_reply() is None
        (reply,) = client.until_closed(health)
        assert outcome(reply) == (503, "close")
        assert reply.code == "overloaded"
        eventually(lambda: '"reason":"stopping"' in service.read_log())
        service.send_signal()
        assert service.wait() == 128 + signal.SIGTERM
    assert '"drained":false' in service.read_log().replace(" ", "")


def outcome(reply: Reply | None) -> tuple[int, str | None]:
    assert reply is not None
    return reply.status, reply.headers.get("connection")
