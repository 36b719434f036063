"""Lookups by the project's client, compared with aiohttp alone and `http.client` alone.

The service runs in a separate process. The peers send the same requests, and read the JSON of the
response without the checks of the client.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from benchmarks.figures import Figure, Target, microseconds, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import Side, Stopwatch, Timing, concurrent, interleave, walls
from tornado_idv.client import AsyncClient, Client, User
from tornado_idv.double import IdentityService

_LOOKUPS = 2000
_TASKS = 8
_BESIDE_AIOHTTP = Target("least", 0.8)
_USER = User("Free", "4000123412341234", "@alice")
_PATH = "/api/v1/identify/url"


async def client(plan: Plan) -> list[Figure]:
    """Measure lookups over kept connections: `AsyncClient` with 8 at a time, `Client` with one."""
    with IdentityService.start() as service, ThreadPoolExecutor(1) as thread:
        service.add(_USER)
        identifiers = [_USER.nickname] * min(_LOOKUPS, plan.keys)
        body = json.dumps({"input": _USER.nickname}).encode()
        fields = {"Authorization": f"Bearer {service.key}", "Content-Type": "application/json"}
        plain = http.client.HTTPConnection(service.url.removeprefix("http://"))
        async with (
            AsyncClient(service.url, service.key, deadline=10.0) as ours,
            aiohttp.ClientSession() as session,
        ):

            async def find(identifier: str) -> object:
                return await ours.find(identifier)

            async def bare(_: str) -> object:
                async with session.post(service.url + _PATH, data=body, headers=fields) as reply:
                    return await reply.json()

            def bare_synchronous(_: str) -> object:
                plain.request("POST", _PATH, body, fields)
                return json.loads(plain.getresponse().read())

            with Client(service.url, service.key, deadline=10.0) as synchronous:
                timings = await interleave(
                    plan,
                    "lookups by the client",
                    {
                        "AsyncClient": lambda: concurrent(find, identifiers, _TASKS),
                        "aiohttp": lambda: concurrent(bare, identifiers, _TASKS),
                        "Client": _in_turn(thread, synchronous.find, identifiers),
                        "http.client": _in_turn(thread, bare_synchronous, identifiers),
                    },
                )
        plain.close()
    return [microseconds(f"lookup by {name}", walls(timings[name])) for name in timings] + [
        ratio(
            "throughput of AsyncClient, beside aiohttp",
            walls(timings["aiohttp"]),
            walls(timings["AsyncClient"]),
            _BESIDE_AIOHTTP,
        ),
        ratio(
            "throughput of Client, beside http.client",
            walls(timings["http.client"]),
            walls(timings["Client"]),
        ),
    ]


def _in_turn(
    thread: ThreadPoolExecutor, call: Callable[[str], object], identifiers: list[str]
) -> Side:
    """Return a side that makes these calls one after the other, in a thread."""

    def run() -> Timing:
        watch = Stopwatch(len(identifiers))
        for each in identifiers:
            call(each)
        return watch.timing()

    async def side() -> Timing:
        return await asyncio.get_running_loop().run_in_executor(thread, run)

    return side
