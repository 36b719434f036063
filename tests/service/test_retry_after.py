"""``Retry-After`` of an undetermined lookup, by the handlers and by the fast path."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from support.http.scripted_server import http, serving
from support.processes.service import CONFIG, Client, serving_here


@pytest.mark.parametrize(
    ("answer", "seconds", "says_try_again"),
    [
        (http(503, b"", "Retry-After: 40"), range(38, 41), True),
        (http(503), range(1, 2), True),
        (http(401), range(60, 61), False),
        (http(200, b"[]"), range(60, 61), False),
    ],
    ids=["asked to wait", "unavailable", "credentials refused", "no record"],
)
async def test_response_says_when_to_retry(
    tmp_path: Path, answer: bytes, seconds: range, *, says_try_again: bool
) -> None:
    async with serving(answer) as upstream:
        backend = {"name": "crm", "kind": "upstream", "base_url": upstream.address}
        config = re.sub("(?m)^server: .*$", "server: {host: 127.0.0.1, port: 0}", CONFIG)
        async with serving_here(f"{config}  - {json.dumps(backend)}\n", tmp_path) as service:
            client = Client(service.port)
            for number in range(4):
                reply = await asyncio.to_thread(client.by_input, f"@user{number}")
                assert (reply.status, reply.code) == (503, "backend_unavailable")
                assert int(reply.headers["retry-after"]) in seconds
                assert ("try again" in json.loads(reply.body)["message"]) is says_try_again


async def test_open_circuit_breaker_says_when_its_probe_is(tmp_path: Path) -> None:
    breaker = {"failures": 1, "open_for": "30s"}
    async with serving(http(500)) as upstream:
        backend = {
            "name": "crm", "kind": "upstream", "base_url": upstream.address, "breaker": breaker
        }  # fmt: skip
        config = re.sub("(?m)^server: .*$", "server: {host: 127.0.0.1, port: 0}", CONFIG)
        async with serving_here(f"{config}  - {json.dumps(backend)}\n", tmp_path) as service:
            client = Client(service.port)
            for number in range(4):
                reply = await asyncio.to_thread(client.by_input, f"@user{number}")
                assert 20 <= int(reply.headers["retry-after"]) <= 37
    assert len(upstream.requests) == 1
