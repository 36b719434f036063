"""This service in front of another directory, beside what asking alone takes, and peers.

The directory is a stub on the load's core, of which it takes some 25 µs for a request. The bare
client, which asks it from our core, shares that core with nobody but the stub; a service has
wrk there too, with some 20 µs. So at the rates that are measured here that core is idle for most
of the time, and what is measured is the service; what the sharing costs, it costs the service,
never the bare client. Everybody has 32 callers, and asks for the same users with the same token.
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

from benchmarks import people
from benchmarks.figures import Figure, Promise, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import take_turns
from benchmarks.wire import servers, traffic, wrk
from benchmarks.wire.ourselves import Ourselves, over_directory
from benchmarks.wire.server import ROOT, Server, running
from benchmarks.wire.servers import Side
from benchmarks.wire.throughput import cpus, of_one, rates

OURS = "this service, proxying"
BARE = "aiohttp's client alone"
_STUB = "the stub"
TOKEN = "a-token-of-the-stub"
_PROMISES = {BARE: 0.6, servers.FASTAPI_HTTPX: 3.0, servers.AIOHTTP_BOTH: None}
"""How many times what is beside us we promise, if we do."""


async def proxied(plan: Plan) -> list[Figure]:
    """Lookups that each ask the stub: ours, what asking alone takes, and the peers."""
    if plan.leaves_out("proxy", wrk.missing()):
        return []
    async with directory(plan) as (stub, contract):
        sides = ours(plan, stub) | servers.peers(plan, contract, servers.PROXIES)
        async with servers.started(plan, sides) as there:
            bears: dict[str, Callable[[], Awaitable[wrk.Work]]] = {
                name: partial(wrk.load, plan, server, traffic.uniform)
                for name, server in there.items()
            }
            bears[BARE] = partial(_ask_alone, plan, contract)
            loads = await take_turns(plan, "load", bears)
    figures = [figure for name, each in loads.items() for figure in of_one(name, each)]
    return figures + [
        figure
        for peer in _PROMISES
        if peer in loads
        for figure in _beside(peer, loads[OURS], loads[peer])
    ]


def ours(plan: Plan, stub: Server) -> dict[str, Side]:
    """This service as it ships, but that it remembers nothing, in front of the stub."""
    backend = over_directory(stub.port, TOKEN)
    return {OURS: Side(Ourselves(plan.folder, backend, uncached=True))}


@asynccontextmanager
async def directory(plan: Plan) -> AsyncIterator[tuple[Server, Path]]:
    """The directory, on the load's core, and the file that tells the peers where it is."""
    upstream = {"token": TOKEN, "site": people.SITE}
    contract = servers.write_contract(plan.folder / "proxying.json", 0, upstream)

    def command(port: int) -> Sequence[str]:
        module = ("-m", "benchmarks.peers.upstream_stub")
        pinned = ("taskset", "-c", str(plan.load_core))
        return [*pinned, sys.executable, *module, str(port), str(contract)]

    async with running(_STUB, command, plan.folder / "stub.log", _knows_its_users) as stub:
        upstream["url"] = f"http://127.0.0.1:{stub.port}"
        yield stub, servers.write_contract(contract, 0, upstream)


def _knows_its_users(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        path = f"/people/{people.nickname(0)}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status == http.HTTPStatus.OK
    finally:
        connection.close()


async def _ask_alone(plan: Plan, contract: Path) -> wrk.Work:
    module = ("-m", "benchmarks.peers.aiohttp_client")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *module, str(contract), str(plan.keys), str(plan.seconds)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    told = json.loads(output)
    return wrk.Work(told["requests"], told["seconds"], told["cpu"] / told["requests"])


def _beside(peer: str, us: Sequence[wrk.Work], them: Sequence[wrk.Work]) -> list[Figure]:
    """What is promised of ours beside a peer, and the same of the processor's time alone."""
    what, least = f"answers of {OURS}, beside {peer}", _PROMISES[peer]
    return [
        ratio(f"{what}, of CPU alone", cpus(them), cpus(us)),
        ratio(what, rates(us), rates(them), Promise("least", least) if least else None),
    ]
