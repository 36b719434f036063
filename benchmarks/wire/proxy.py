"""This service as a proxy of an upstream directory, compared with peers and a bare client.

The upstream is a stub on the load's core. It takes about 25 µs per request (CPython 3.11). In
measurements of a service, wrk takes about 20 µs more on the same core. At the measured rates, this
core is mostly idle, so the service determines the result. Sharing the core slows the service, but
never the bare client. Each side has 32 connections, and looks up the same users with the same
token.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks import dataset
from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_directory
from benchmarks.wire.process import ROOT, Server, run_server
from benchmarks.wire.throughput import cpus, of_one, rates

OURS = "this service, proxying"
BARE = "aiohttp's client alone"
_STUB = "the stub"
TOKEN = "a-token-of-the-stub"
_TARGETS = {BARE: 0.5, contenders.FASTAPI_HTTPX: 5.0, contenders.AIOHTTP_BOTH: None}
"""Targets: throughput of this service / throughput of the peer. ``None`` is no target."""


async def proxied(plan: Plan) -> list[Figure]:
    """Measure uncached lookups by this service, the bare client and the peers."""
    if plan.skip("proxy", wrk.missing()):
        return []
    async with directory(plan) as (stub, contract):
        sides = ours(plan, stub) | contenders.peers(plan, contract, contenders.PROXIES)
        async with contenders.run_all(plan, sides) as servers:
            loads_of: dict[str, Callable[[], Awaitable[wrk.Work]]] = {
                name: partial(wrk.load, plan, server, traffic.uniform)
                for name, server in servers.items()
            }
            loads_of[BARE] = partial(_run_bare_client, plan, contract)
            loads = await interleave(plan, "load", loads_of)
    figures = [figure for name, each in loads.items() for figure in of_one(name, each)]
    return figures + [
        figure
        for peer in _TARGETS
        if peer in loads
        for figure in _compare(peer, loads[OURS], loads[peer])
    ]


def ours(plan: Plan, stub: Server) -> dict[str, Contender]:
    """Return this service with an uncached upstream backend."""
    backend = over_directory(stub.port, TOKEN)
    return {OURS: Contender(OurService(plan.folder, backend, uncached=True))}


@asynccontextmanager
async def directory(plan: Plan) -> AsyncIterator[tuple[Server, Path]]:
    """Run the upstream on the load's core. Yield it and the contract file for the peers."""
    upstream = {"token": TOKEN, "site": dataset.SITE}
    contract = contenders.write_contract(plan.folder / "proxying.json", 0, upstream)

    def command(port: int) -> Sequence[str]:
        module = ("-m", "benchmarks.peers.upstream_stub")
        pinned = ("taskset", "-c", str(plan.load_core))
        return [*pinned, sys.executable, *module, str(port), str(contract)]

    async with run_server(_STUB, command, plan.folder / "stub.log", _is_serving) as stub:
        upstream["url"] = f"http://127.0.0.1:{stub.port}"
        yield stub, contenders.write_contract(contract, 0, upstream)


def _is_serving(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        path = f"/people/{dataset.nickname(0)}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status == http.HTTPStatus.OK
    finally:
        connection.close()


async def _run_bare_client(plan: Plan, contract: Path) -> wrk.Work:
    module = ("-m", "benchmarks.peers.aiohttp_client")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *module, str(contract), str(plan.keys), str(plan.seconds)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    result = json.loads(output)
    return wrk.Work(result["requests"], result["seconds"], result["cpu"] / result["requests"])


def _compare(peer: str, us: Sequence[wrk.Work], them: Sequence[wrk.Work]) -> list[Figure]:
    """Return the ratios of throughput and of CPU time between this service and a peer."""
    what, least = f"responses of {OURS} / {peer}", _TARGETS[peer]
    return [
        ratio(f"{what}, by CPU time", cpus(them), cpus(us)),
        ratio(what, rates(us), rates(them), Target("least", least) if least else None),
    ]
