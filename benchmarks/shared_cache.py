"""A shared cache in Redis: its gain for a starting process, and the cost of its failure.

    python -m benchmarks.shared_cache

One process has filled the shared cache. A second process starts with an empty local cache, and for
comparison a third without the shared cache. The n-th user is requested 1/n**1.1 times as often as
the first. Only users without an earlier request reach the backend.

For the cost of a failure, the Redis server is missing, so the circuit breaker is open. The service
is compared with one without a shared cache.
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial

from benchmarks import redis_server
from benchmarks.figures import Figure, Target, ratio
from benchmarks.plan import Plan
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.process import free_port, run_server
from benchmarks.wire.sequential import cache_shares, send
from benchmarks.wire.throughput import cpus, interleaved_loads, of_one, rates

_SKEW = 1.1
_MAX_USERS = 3000
_REQUESTS_PER_USER = 10
"""Requests for filling the shared cache, per user."""
_TO_BACKEND = Target("most", 0.05)
_WITHOUT_REDIS = Target("least", 0.95)
_KINDS = ("uncached lookups", "hits")
_LOG_DELAY = 0.3
"""Seconds to wait for the access log. It is written sooner."""


async def shared_cache(plan: Plan) -> list[Figure]:
    """Measure a starting process, and services with a missing Redis server."""
    if plan.skip("shared_cache", wrk.missing() or redis_server.missing()):
        return []
    return [*await cold_process(plan), *await without_redis(plan)]


async def cold_process(plan: Plan) -> list[Figure]:
    """Return the shares of requests to the backend, for a starting process."""
    users, service = min(plan.keys, _MAX_USERS), partial(OurService, plan.folder, over_yaml(plan))
    async with redis_server.running(plan.folder) as port:
        shared = service(shared_cache=redis_server.shared_cache(port))
        with plan.step("cold process", 3) as advance:
            await _shares(plan, "warm", shared, _zipf(users, 1, users * _REQUESTS_PER_USER))
            advance()
            requests = _zipf(users, 2, users)
            with_tier = await _shares(plan, "cold", shared, requests)
            advance()
            alone = await _shares(plan, "alone", service(), requests)
            advance()
    what = "requests of a cold process that reach the backend"
    return [
        Figure(f"{what}, without a shared cache", "of all", (alone["miss"],)),
        Figure(f"{what}, with one", "of all", (with_tier["miss"],), _TO_BACKEND),
    ]


async def without_redis(plan: Plan) -> list[Figure]:
    """Return the throughput of services with a missing Redis server, and without a shared cache."""
    services = {
        kind: partial(OurService, plan.folder, over_yaml(plan), uncached=kind == _KINDS[0])
        for kind in _KINDS
    }
    away = redis_server.shared_cache(free_port())
    sides = {f"{kind}, no shared cache": Contender(make()) for kind, make in services.items()}
    sides |= {
        f"{kind}, no server": Contender(make(shared_cache=away)) for kind, make in services.items()
    }
    async with contenders.run_all(plan, sides) as servers:
        targets = {name: (server, traffic.uniform) for name, server in servers.items()}
        loads = await interleaved_loads(plan, targets)
    figures = [figure for name, each in loads.items() for figure in of_one(name, each)]
    for kind in _KINDS:
        without, away_loads = loads[f"{kind}, no shared cache"], loads[f"{kind}, no server"]
        what = f"responses without a server / without a shared cache, {kind}"
        figures += [
            ratio(f"{what}, by CPU time", cpus(without), cpus(away_loads), _WITHOUT_REDIS),
            ratio(what, rates(away_loads), rates(without)),
        ]
    return figures


async def _shares(
    plan: Plan, name: str, service: OurService, requests: traffic.Traffic
) -> dict[str, float]:
    """Send the requests to a new process. Return the shares of results of its cache."""
    log = plan.folder / f"{name}.log"
    async with run_server(name, service, log) as server:
        await send([server.port], requests.head, requests.bodies)
        await asyncio.sleep(_LOG_DELAY)
    return cache_shares([log])


def _zipf(users: int, seed: int, count: int) -> traffic.Traffic:
    chooser = random.Random(seed)
    weights = [1 / rank**_SKEW for rank in range(1, users + 1)]
    return traffic.for_users(chooser.choices(range(users), weights, k=count))


if __name__ == "__main__":
    from benchmarks.__main__ import main

    main(["--only=shared_cache", *sys.argv[1:]])
