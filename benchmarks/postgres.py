"""Uncached lookups in PostgreSQL over HTTP, compared with asyncpg alone and with a peer.

The server runs on the load's core. In measurements of a service, it shares this core with wrk: this
slows the service, but never the bare client. Each side has 32 callers with 32 connections to the
server, and looks up the same users.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import dataset, postgres_server
from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService
from benchmarks.wire.process import ROOT
from benchmarks.wire.throughput import cpus, of_one, rates

OURS = "this service over PostgreSQL"
BARE = "asyncpg's fetchrow alone"
_TARGETS = {BARE: 0.6, contenders.FASTAPI_SQLALCHEMY: 2.0}
"""Targets: throughput of this service / throughput of the other side."""


async def postgres(plan: Plan) -> list[Figure]:
    """Measure uncached lookups by this service, the bare client and the peer."""
    if plan.skip("postgres", wrk.missing() or postgres_server.missing()):
        return []
    async with postgres_server.running(plan, wrk.CONNECTIONS) as dsn:
        source = {"dsn": dsn, "site": dataset.SITE}
        contract = contenders.write_contract(plan.folder / "postgres.json", 0, source)
        sides = ours(plan, dsn)
        sides |= contenders.peers(plan, contract, [contenders.FASTAPI_SQLALCHEMY])
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
        for other in _TARGETS
        if other in loads
        for figure in _compare(other, loads[OURS], loads[other])
    ]


def ours(plan: Plan, dsn: str) -> dict[str, Contender]:
    """Return this service with an uncached backend of the kind ``postgres``."""
    members = f"name: measured, kind: postgres, dsn: '{dsn}', timeout: 9s"
    pool = f"pool: {{min: {wrk.CONNECTIONS}, max: {wrk.CONNECTIONS}}}"
    service = OurService(plan.folder, f"{{{members}, {pool}}}", uncached=True)
    return {OURS: Contender(service)}


async def _run_bare_client(plan: Plan, contract: Path) -> wrk.Work:
    arguments = map(str, (contract, wrk.CONNECTIONS, plan.keys, plan.seconds))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.peers.asyncpg_client", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    result = json.loads(output)
    return wrk.Work(result["requests"], result["seconds"], result["cpu"] / result["requests"])


def _compare(other: str, us: Sequence[wrk.Work], them: Sequence[wrk.Work]) -> list[Figure]:
    """Return the ratios of throughput and of CPU time between this service and another side."""
    what = f"responses of {OURS} / {other}"
    return [
        ratio(f"{what}, by CPU time", cpus(them), cpus(us)),
        ratio(what, rates(us), rates(them), Target("least", _TARGETS[other])),
    ]
