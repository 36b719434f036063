"""The admin listener by its address and its timeouts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from idv_yaml.backend import YamlBackend
from support.fakes.clock_and_backends import LoopClock
from support.processes.admin import WITH_ADMIN, admin_port
from support.processes.ports import free_port
from support.processes.service import serving_here
from tornado_idv.admin.listener import admin_listening
from tornado_idv.config.address import Address
from tornado_idv.service.service import Service
from tornado_idv.service.sockets import bind

GET = b"GET /health/ready HTTP/1.1\r\nHost: %s\r\n\r\n"


@asynccontextmanager
async def listening_on(
    service: Service, addresses: Sequence[str], host: str
) -> AsyncIterator[list[int]]:
    """An admin listener of a service on these addresses, and its ports."""
    sockets = [sock for each in addresses for sock in bind("admin", Address(each))]
    async with admin_listening(sockets, host, service):
        yield [Address.of(each).port for each in sockets]


async def status(port: int, host: bytes = b"localhost") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET % host)
    line = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    return int(line.split()[1])


async def test_connection_is_not_refused_before_the_public_listener_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe of the admin listener begins while the backends are opened, and is answered."""
    port = free_port()
    probes = []

    async def open_backend(backend: YamlBackend) -> None:
        probes.append(await asyncio.open_connection("127.0.0.1", port))
        await opened(backend)

    opened = YamlBackend.open
    monkeypatch.setattr(YamlBackend, "open", open_backend)
    config = WITH_ADMIN.replace("admin: {port: 0}", f"admin: {{port: {port}}}")
    async with serving_here(config, tmp_path):
        ((reader, writer),) = probes
        writer.write(GET % b"localhost")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.0.1", "127.0.0.1"], 200),
        (["127.0.0.1", "0.0.0.0"], 401),
        (["0.0.0.0", "127.0.0.1"], 401),
        (["0.0.0.0"], 401),
    ],
    ids=["loopback", "other last", "other first", "other"],
)
async def test_key_is_needed_unless_every_address_is_on_loopback(
    tmp_path: Path, addresses: list[str], expected: int
) -> None:
    """As where the name of a host has an address on loopback beside its own."""
    async with (
        serving_here(WITH_ADMIN, tmp_path) as service,
        listening_on(service, addresses, "name") as ports,
    ):
        assert [await status(port) for port in ports] == [expected] * len(ports)


async def test_configured_host_is_a_name_in_any_case(tmp_path: Path) -> None:
    async with (
        serving_here(WITH_ADMIN, tmp_path) as service,
        listening_on(service, ["127.0.0.1"], "Admin.Internal") as (port,),
    ):
        for host in (b"Admin.Internal", b"admin.internal", b"ADMIN.INTERNAL:8081"):
            assert await status(port, host) == 200
        assert await status(port, b"admin.external") == 421


async def seconds_until_closed(reader: asyncio.StreamReader, clock: LoopClock) -> int:
    for second in range(100):
        await clock.advance(1.0)
        for _ in range(20):  # the close arrives
            await asyncio.sleep(0)
        if reader.at_eof():
            return second
    raise AssertionError


async def test_connection_is_closed_without_a_first_or_a_further_request(tmp_path: Path) -> None:
    """The first has to come within seconds; scrapers may keep their connections open."""
    async with serving_here(WITH_ADMIN, tmp_path) as service:
        clock, port = LoopClock(), admin_port(service)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        assert await status(port) == 200  # an idle connection gave way
        for _, writer in idle:
            writer.close()
        reader, silent = await asyncio.open_connection("127.0.0.1", port)
        assert 4 <= await seconds_until_closed(reader, clock) <= 8
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"localhost")
        await asyncio.wait_for(reader.readuntil(b'"degraded":[]}'), 5)
        assert 70 <= await seconds_until_closed(reader, clock) <= 80
        silent.close()
        writer.close()
