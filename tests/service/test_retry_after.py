"""``Retry-After`` of an undetermined lookup, by the handlers and by the fast path."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from support.http.scripted_server import http, serving
from support.processes.service import CONFIG, Client, serving_here

BREAKER = {"failures": 1, "open_for": "30s"}


@pytest.mark.parametrize(
    ("answer", "breaker", "seconds", "says_try_again", "is_asked_once"),
    [
        (http(503, b"", "Retry-After: 40"), {}, range(38, 41), True, True),
        (http(503), {}, range(1, 2), True, False),
        (http(401), {}, range(60, 61), False, False),
        (http(200, b"[]"), {}, range(60, 61), False, False),
        (http(500), BREAKER, range(20, 38), True, True),
    ],
    ids=["asked to wait", "unavailable", "credentials refused", "no record", "circuit breaker"],
)
async def test_response_says_when_to_retry(
    tmp_path: Path,
    answer: bytes,
    breaker: dict[str, object],
    seconds: range,
    *,
    says_try_again: bool,
    is_asked_once: bool,
) -> None:
    async with serving(answer) as upstream:
        backend = {"name": "crm", "kind": "upstream", "base_url": upstream.address}
        config = re.sub("(?m)^server: .*$", "server: {host: 127.0.0.1, port: 0}", CONFIG)
        line = json.dumps({**backend, "breaker": breaker})
        async with serving_here(f"{config}  - {line}\n", tmp_path) as service:
            client = Client(service.port)
            for number in range(4):
                reply = await asyncio.to_thread(client.by_input, f"@user{number}")
                assert (reply.status, reply.code) == (503, "backend_unavailable")
                assert int(reply.headers["retry-after"]) in seconds
                assert ("try again" in json.loads(reply.body)["message"]) is says_try_again
    assert (len(upstream.requests) == 1) is is_asked_once
