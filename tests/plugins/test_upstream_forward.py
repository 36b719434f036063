"""Headers of a client's request that reach an upstream: those of `forward`, and no other."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.databases.upstream_backends import upstream
from support.http.scripted_server import OWN_ID, header, http, serving
from support.processes.service import CONFIG, KEY, Client, serving_here
from tornado_idv import ByNickname
from tornado_idv.trace_context import parse_trace

URL = "/api/v1/identify/url"
NOT_FOUND = http(
    404, b'{"status": "error", "code": "not_found"}', f"X-IDV-Request-ID: {OWN_ID.decode()}"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
CALLER = {
    "Accept": "application/json;caller=1",
    "Cookie": "caller",
    "Host": "caller.example",
    "User-Agent": "caller",
    "X-Forwarded-For": "caller",
    "tracestate": "vendor=caller-state",
    "X-Request-ID": "caller-request",
}


async def forwarded(
    folder: Path, forward: list[str], *requests: dict[str, str], fast_path: bool = True
) -> list[bytes]:
    async with serving(NOT_FOUND) as directory:
        backend = {"name": "crm", "kind": "upstream", "forward": forward}
        backend["base_url"] = directory.address
        server = f"server: {{host: 127.0.0.1, port: 0, fast_path: {json.dumps(fast_path)}}}\n"
        config = re.sub("server: .*\n", "", CONFIG) + f"  - {json.dumps(backend)}\n{server}"
        async with serving_here(config, folder) as service:
            client = Client(service.port)
            for number, headers in enumerate(requests):
                body = json.dumps({"input": f"@user{number}"}).encode()
                reply = await asyncio.to_thread(client.post, URL, body, headers)
                assert (reply.status, reply.code) == (404, "not_found")
    assert len(directory.requests) == len(requests)
    return directory.requests


@pytest.mark.parametrize("fast_path", [True, False])
async def test_traceparent_and_request_id_are_forwarded(tmp_path: Path, *, fast_path: bool) -> None:
    traces = [f"{number:032x}" for number in range(1, 7)]
    callers = [
        {**CALLER, "traceparent": f"00-{trace}-{SPAN}-01", "X-Request-ID": f"request-{trace}"}
        for trace in traces
    ]
    both = ["traceparent", "x-request-id"]
    untraced, stateless = CALLER, {"traceparent": callers[0]["traceparent"]}
    overlong = callers[0] | {"tracestate": "v=" + "x" * 511}
    callers += [overlong, untraced, stateless]
    *got, first, second, last = await forwarded(tmp_path, both, *callers, fast_path=fast_path)
    assert header(second, "traceparent") is header(last, "tracestate") is None
    assert header(first, "tracestate") is None
    spans = set()
    for trace, request in zip(traces, got, strict=True):
        assert header(request, "X-Request-ID") == f"request-{trace}"
        assert header(request, "Content-Type") == "application/json"
        assert header(request, "tracestate") == "vendor=caller-state"
        traceparent = header(request, "traceparent") or ""
        assert re.fullmatch(f"00-{trace}-[0-9a-f]{{16}}-01", traceparent)
        spans.add(traceparent.split("-")[2])
    assert len(spans) == len(traces)
    assert SPAN not in spans


@pytest.mark.parametrize("forward", [[], ["traceparent"], ["x-request-id"]])
async def test_no_other_header_is_forwarded(tmp_path: Path, forward: list[str]) -> None:
    """The first request takes the slow path, and the others the fast path."""
    caller = {**CALLER, "traceparent": f"00-{TRACE}-{SPAN}-01"}
    for request in await forwarded(tmp_path, forward, *[caller] * 4):
        assert (TRACE.encode() in request) == (forward == ["traceparent"])
        assert (b"caller-request" in request) == (forward == ["x-request-id"])
        hidden = request.replace(b"caller-request", b"").replace(b"caller-state", b"")
        assert b"caller" not in hidden
        assert SPAN.encode() not in request
        assert KEY.encode() not in request


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_invalid_traceparent_is_not_forwarded(traceparent: str) -> None:
    assert parse_trace(traceparent, "vendor=caller-state") is None


@pytest.mark.parametrize(("flags", "sent"), [("01", "01"), ("ff", "03"), ("fc", "00")])
def test_flags_that_are_not_defined_are_sent_as_zero(flags: str, sent: str) -> None:
    trace: Any = parse_trace(f"cc-{TRACE}-{SPAN}-{flags}")
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-{sent}", trace.child())


async def test_lookup_without_a_request_forwards_nothing() -> None:
    async with upstream(NOT_FOUND, forward=["traceparent", "x-request-id"]) as (server, backend):
        assert await backend.find(ByNickname("alice")) is None
    (request,) = server.requests
    assert header(request, "traceparent") is header(request, "X-Request-ID") is None
