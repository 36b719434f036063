"""The caller's address in the access log, over real connections."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from support.processes.service import CONFIG, FIXTURE, KEY
from tornado_idv.config.load import ConfigFile
from tornado_idv.log_format import json_lines
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.service import listening
from tornado_idv.web.access_log import AccessLog

Remotes = list[str]

HEADERS = {
    "of a chain": ((b"x-forwarded-for: 198.51.100.1,203.0.113.5:80, 10.0.0.1",), "203.0.113.5"),
    "in two lines": (
        (b"X-Forwarded-For: 203.0.113.5", b"Accept: */*", b"X-Forwarded-For: 10.0.0.1"),
        "203.0.113.5",
    ),
    "garbage": ((b'X-Forwarded-For: ", "client": "1.2.3.4',), "127.0.0.1"),
    "another header": ((b"X-Real-IP: 203.0.113.5", b"Forwarded: for=203.0.113.5"), "127.0.0.1"),
}


async def remotes(
    folder: Path, *fields: bytes, packet_cache: bool, trusted: str, host: str = "127.0.0.1"
) -> Remotes:
    """Return the client addresses in the access log for three equal requests on one connection."""
    (folder / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    server = f"port: 0, host: '{host}', trusted_proxies: {trusted}, packet_cache: {packet_cache}"
    config = folder / "config.yaml"
    lines = [f"server: {{{server}}}" if "port: 0" in each else each for each in CONFIG.splitlines()]
    lines.append("  - {name: users, kind: yaml, path: users.yaml}")
    config.write_text("\n".join(lines), encoding="utf-8")
    manager = plugin_manager()
    file = ConfigFile.read(config)
    settings = file.load(installed_kinds(manager), {})
    written: list[str] = []
    access_log = AccessLog(written.append, json_lines)
    async with listening(file, settings, manager, access_log) as service:
        await _ask(host, service.port, *fields)
    access_log.flush()
    return [json.loads(line)["client"] for line in "".join(written).splitlines()]


async def _ask(host: str, port: int, *fields: bytes) -> None:
    body = b'{"input": "@alice"}'
    lines = [
        b"POST /api/v1/identify/url HTTP/1.1",
        b"Host: x",
        b"Authorization: Bearer " + KEY.encode(),
        b"Content-Length: %d" % len(body),
        *fields,
    ]
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(3):
        writer.write(b"\r\n".join([*lines, b"", body]))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2]))
    writer.close()


@pytest.mark.parametrize("packet_cache", [True, False])
@pytest.mark.parametrize(("fields", "remote"), HEADERS.values(), ids=HEADERS)
async def test_client_address_behind_a_trusted_proxy_is_logged(
    tmp_path: Path,
    fields: tuple[bytes, ...],
    remote: str,
    packet_cache: bool,  # noqa: FBT001
) -> None:
    trusted = "[127.0.0.1, 10.0.0.0/8]"
    reported = await remotes(tmp_path, *fields, trusted=trusted, packet_cache=packet_cache)
    assert reported == [remote] * 3


@pytest.mark.parametrize("packet_cache", [True, False])
async def test_forwarded_address_of_an_untrusted_peer_is_ignored(
    tmp_path: Path,
    packet_cache: bool,  # noqa: FBT001
) -> None:
    field, trusted = b"X-Forwarded-For: 203.0.113.5", "[127.0.0.2, 10.0.0.0/8]"
    reported = await remotes(tmp_path, field, trusted=trusted, packet_cache=packet_cache)
    assert reported == ["127.0.0.1"] * 3


def has_ipv6_loopback() -> bool:
    """Some containers have none."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no socket can be bound to ::1 here")
async def test_proxy_may_connect_over_ipv6(tmp_path: Path) -> None:
    field = b"X-Forwarded-For: [2001:db8::5]:80"
    reported = await remotes(tmp_path, field, trusted="['::1']", packet_cache=True, host="::1")
    assert reported == ["2001:db8::5"] * 3
