"""How much longer good callers wait while others do harm."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from benchmarks.figures import Figure, Promise, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import take_turns
from benchmarks.wire import agreement, servers, wrk
from benchmarks.wire.attackers import ATTACKS
from benchmarks.wire.server import ROOT, Server
from benchmarks.wire.traffic import uniform
from tornado_idv.http.limits import HttpLimits

_SHARE = 0.2
_QUIET = "nobody does harm"
_LONGER = Promise("most", 1.5)
_DESCRIPTORS = 4200
"""As many as the service takes connections as it ships, and some for itself."""
_HELD = 0.9
"""What an attack is to hold of its connections: a few are always being opened anew."""

LIFE = HttpLimits().idle_timeout
CROWD = 1.0
"""The part of an attack's connections that is opened."""
BACKGROUND: Sequence[str] = ("chrt", "--idle", "0")
"""How an attack is run: in the time that nothing else wants on its core. The good callers there
would wait for it otherwise, and that would be measured."""
PATIENCE = 60.0
"""Seconds for an attack to be ready, beside `LIFE`, and to end. On a machine with other work in
the background it may never have a turn."""


async def attack(plan: Plan) -> list[Figure]:
    """Good callers at a fifth of what the service can answer, alone and beside each attack."""
    if plan.leaves_out("attack", wrk.missing() or _too_few_descriptors()):
        return []
    side = servers.ours(plan)[servers.OURS]
    sent: dict[str, list[float]] = {name: [] for name in ATTACKS}
    with _descriptors():
        async with servers.started(plan, {servers.OURS: side}) as there:
            server = there[servers.OURS]
            rate = (await wrk.load(plan, server, uniform)).rate * _SHARE
            quiet = partial(wrk.paced, plan, server, uniform, rate)
            beside = {
                name: partial(_beside, plan, server, name, rate, sent[name]) for name in ATTACKS
            }
            loads = await take_turns(plan, "attacked load", {_QUIET: quiet, **beside})
    harm = [
        Figure("sent", "/s", tuple(rates), of=name) for name, rates in sent.items() if any(rates)
    ]
    figures = [figure for name in loads for figure in _of_one(name, loads[name])]
    return figures + harm + _longer(loads)


async def _beside(
    plan: Plan, server: Server, name: str, rate: float, sent: list[float]
) -> wrk.Load:
    """One round beside an attack, after which the server is to be as it was."""
    async with attacked(plan, server, name, sent):
        load = await wrk.paced(plan, server, uniform, rate)
    agreement.check(server, plan.keys)
    return load


@asynccontextmanager
async def attacked(plan: Plan, server: Server, name: str, sent: list[float]) -> AsyncIterator[None]:
    """Runs the attack, on the core that asks; raises `RuntimeError` unless it held out.

    How often a second it sent something is put into ``sent`` in the end.
    """
    callers = max(1, round(ATTACKS[name].callers * CROWD))
    arguments = (name, str(callers), str(server.port), str(LIFE))
    process = await asyncio.create_subprocess_exec(
        *(*BACKGROUND, "taskset", "-c", str(plan.load_core)),
        *(sys.executable, "-m", "benchmarks.wire.attackers", *arguments),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIFE + PATIENCE):
            ready = await process.stdout.readline()
        if ready != b"ready\n":
            raise RuntimeError(f"{server.name} let nobody attack it with {name}")
        yield
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            told, _ = await process.communicate()
        held, rate = told.split()
        sent.append(float(rate))
        if int(held) < callers * _HELD:
            raise RuntimeError(f"{name} came to {int(held)} connections in the end")
    except TimeoutError:
        raise RuntimeError(f"{name} had no time on core {plan.load_core}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _of_one(name: str, loads: Sequence[wrk.Load]) -> list[Figure]:
    busy = tuple(load.cpu * load.rate * 100 for load in loads)
    return [
        Figure("p50", "ms", tuple(load.p50 * 1000 for load in loads), of=name),
        Figure("p99", "ms", tuple(load.p99 * 1000 for load in loads), of=name),
        Figure("good answers", "/s", tuple(load.rate for load in loads), of=name),
        Figure("CPU", "% of a core", busy, of=name),
    ]


def _longer(loads: Mapping[str, Sequence[wrk.Load]]) -> list[Figure]:
    p99 = {name: [load.p99 for load in each] for name, each in loads.items()}
    return [
        ratio(f"p99 of good callers beside {name}", p99[name], p99[_QUIET], _LONGER)
        for name in ATTACKS
    ]


def _too_few_descriptors() -> str | None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _DESCRIPTORS:
        return None
    return f"{_DESCRIPTORS} descriptors are needed, and at most {hard} are to be had"


@contextmanager
def _descriptors() -> Iterator[None]:
    """What is started inside has enough of them."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
