"""HTTP clients with lookups one after the other, or on eight connections, for some seconds.

    python -m benchmarks.peers.clients CLIENT PORT SECONDS USERS KEY

Prints the number of responses. Each must have the status 200.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

PATH = "/api/v1/identify/url"
_CONNECTIONS = 8

_name, _port, _seconds, _users, _key = sys.argv[1:6]
_url = f"http://127.0.0.1:{_port}{PATH}"
_headers = {"Authorization": f"Bearer {_key}"}
_end = time.perf_counter() + float(_seconds)


def _record() -> dict[str, str]:
    return {"input": f"@user{random.randrange(int(_users)):08}"}


def _count(send: Callable[[], int]) -> int:
    for number in itertools.count():
        if time.perf_counter() >= _end:
            return number
        _check(send())
    return 0


async def _count_async(send: Callable[[], Awaitable[int]]) -> int:
    async def one() -> int:
        number = 0
        while time.perf_counter() < _end:
            _check(await send())
            number += 1
        return number

    return sum(await asyncio.gather(*(one() for _ in range(_CONNECTIONS))))


def _check(status: int) -> None:
    if status != 200:  # noqa: PLR2004
        raise SystemExit(f"a response with status {status}")


def _http_client() -> int:
    import json  # noqa: PLC0415 - imported on use, as in the other clients

    connection = http.client.HTTPConnection("127.0.0.1", int(_port))

    def send() -> int:
        body = json.dumps(_record())
        connection.request("POST", PATH, body, {**_headers, "Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status

    return _count(send)


def _requests() -> int:
    import requests  # noqa: PLC0415

    with requests.Session() as session:
        session.headers.update(_headers)
        return _count(lambda: session.post(_url, json=_record()).status_code)


def _httpx() -> int:
    import httpx  # noqa: PLC0415

    with httpx.Client(headers=_headers) as client:
        return _count(lambda: client.post(_url, json=_record()).status_code)


def _httpx_traced() -> int:
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    trace.set_tracer_provider(TracerProvider())
    HTTPXClientInstrumentor().instrument()
    return _httpx()


def _aiohttp(tracing: Callable[[], Any] | None = None) -> int:
    import aiohttp  # noqa: PLC0415

    async def run() -> int:
        traces = [tracing()] if tracing is not None else []
        async with aiohttp.ClientSession(headers=_headers, trace_configs=traces) as session:

            async def send() -> int:
                async with session.post(_url, json=_record()) as response:
                    await response.read()
                    return response.status

            return await _count_async(send)

    return asyncio.run(run())


def _aiohttp_traced() -> int:
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.instrumentation.aiohttp_client import create_trace_config  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    trace.set_tracer_provider(TracerProvider())
    return _aiohttp(create_trace_config)


CLIENTS: Mapping[str, Callable[[], int]] = {
    "aiohttp": _aiohttp,
    "aiohttp-opentelemetry": _aiohttp_traced,
    "http.client": _http_client,
    "requests": _requests,
    "httpx": _httpx,
    "httpx-opentelemetry": _httpx_traced,
}

if __name__ == "__main__":
    print(CLIENTS[_name]())
