"""Latency of legitimate clients during attacks."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial

from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import conformance, contenders, wrk
from benchmarks.wire.attackers import ATTACKS
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.process import ROOT, Server
from benchmarks.wire.traffic import uniform
from tornado_idv.http.connection_table import HttpLimits

_SHARE = 0.2
_BASELINE = "no attack"
_LIMITS = "{failed_auth: 60/minute}"
_SLOWDOWN = Target("most", 1.5)
_DESCRIPTORS = 4200
"""The default of ``server.max_connections``, and some descriptors for other files."""
_MIN_OPEN = 0.9
"""Minimum share of open connections of an attack. Some are always being reopened."""

RAMP_UP = HttpLimits().idle_timeout
"""Seconds for opening all connections of an attack with expiring connections."""
SCALE = 1.0
"""The share of an attack's connections to open."""
TIMEOUT = 60.0
"""Timeout of an attack in seconds, for its start after `RAMP_UP`, and for its end."""
_MAX_SECONDS = 40.0
"""Maximum average time of an attack without the round, in seconds. Usually it takes 3 to 25 s."""


def low_priority() -> Sequence[str]:
    """Return the command for an attack with lower priority than the legitimate clients.

    Both share a core. With equal priority, the result would include waits of the clients for this
    core. On a machine with other load, an attack at idle priority may never run: start the
    benchmarks with ``nice -n -20`` there.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        return "nice", "-n", "10"
    return "chrt", "--idle", "0"


async def attack(plan: Plan) -> list[Figure]:
    """Measure legitimate traffic at a fifth of the capacity, alone and during each attack.

    Wrong keys are rate-limited, so most of them get 429.
    """
    if plan.skip("attack", wrk.missing() or _too_few_descriptors()):
        return []
    side = Contender(OurService(plan.folder, over_yaml(plan), limits=_LIMITS))
    sent: dict[str, list[float]] = {name: [] for name in ATTACKS}
    with _descriptors():
        async with contenders.run_all(plan, {contenders.OURS: side}) as servers:
            server = servers[contenders.OURS]
            rate = (await wrk.load(plan, server, uniform)).rate * _SHARE
            baseline = partial(wrk.paced, plan, server, uniform, rate)
            beside = {
                name: partial(_beside, plan, server, name, rate, sent[name]) for name in ATTACKS
            }
            # No warm-up: the load at full speed was one.
            sides = {_BASELINE: baseline, **beside}
            plan = replace(plan, warm_up=False)
            async with asyncio.timeout(plan.rounds * len(sides) * (plan.seconds + _MAX_SECONDS)):
                loads = await interleave(plan, "load during attacks", sides)
    attack_rates = [
        Figure("sent", "/s", tuple(rates), of=name) for name, rates in sent.items() if any(rates)
    ]
    figures = [figure for name in loads for figure in _of_one(name, loads[name])]
    return figures + attack_rates + _slowdowns(loads)


async def _beside(
    plan: Plan, server: Server, name: str, rate: float, sent: list[float]
) -> wrk.Load:
    """Measure one round during an attack. Afterwards the server must still conform."""
    async with attacked(plan, server, name, sent):
        load = await wrk.paced(plan, server, uniform, rate)
    conformance.check(server, plan.keys)
    return load


@asynccontextmanager
async def attacked(plan: Plan, server: Server, name: str, sent: list[float]) -> AsyncIterator[None]:
    """Run the attack on the load's core. Raises `RuntimeError` if it ends early.

    At the end, its writes per second are appended to ``sent``.
    """
    clients = max(1, round(ATTACKS[name].clients * SCALE))
    ramp_up = RAMP_UP if ATTACKS[name].expires else 0.0
    arguments = (name, str(clients), str(server.port), str(ramp_up))
    process = await asyncio.create_subprocess_exec(
        *(*low_priority(), "taskset", "-c", str(plan.load_core)),
        *(sys.executable, "-m", "benchmarks.wire.attackers", *arguments),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ramp_up + TIMEOUT):
            ready = await process.stdout.readline()
        if ready != b"ready\n":
            raise RuntimeError(f"{server.name} accepted no connections of the attack: {name}")
        yield
        process.terminate()
        async with asyncio.timeout(TIMEOUT):
            output, _ = await process.communicate()
        connections, rate = output.split()
        sent.append(float(rate))
        if int(connections) < clients * _MIN_OPEN:
            raise RuntimeError(f"{name}: only {int(connections)} connections were open at the end")
    except TimeoutError:
        text = f"{name}: timeout, core {plan.load_core} is busy; start this with nice -n -20"
        raise RuntimeError(text) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _of_one(name: str, loads: Sequence[wrk.Load]) -> list[Figure]:
    busy = tuple(load.cpu * load.rate * 100 for load in loads)
    return [
        Figure("p50", "ms", tuple(load.p50 * 1000 for load in loads), of=name),
        Figure("p99", "ms", tuple(load.p99 * 1000 for load in loads), of=name),
        Figure("responses", "/s", tuple(load.rate for load in loads), of=name),
        Figure("CPU", "% of a core", busy, of=name),
    ]


def _slowdowns(loads: Mapping[str, Sequence[wrk.Load]]) -> list[Figure]:
    p99 = {name: [load.p99 for load in each] for name, each in loads.items()}
    return [
        ratio(f"p99 of legitimate clients during {name}", p99[name], p99[_BASELINE], _SLOWDOWN)
        for name in ATTACKS
    ]


def _too_few_descriptors() -> str | None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _DESCRIPTORS:
        return None
    return f"{_DESCRIPTORS} file descriptors are needed, but the hard limit is {hard}"


@contextmanager
def _descriptors() -> Iterator[None]:
    """Raise the limit of file descriptors for processes started in this context."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
