"""All benchmarks by module name, in the order of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from benchmarks.client import client
from benchmarks.dispatch import missed_find
from benchmarks.figures import Figure
from benchmarks.hit import cached_find
from benchmarks.ldap import ldap
from benchmarks.memory import resident_memory
from benchmarks.plan import Plan
from benchmarks.postgres import postgres
from benchmarks.shared_cache import shared_cache
from benchmarks.sqlite import uncached_find
from benchmarks.wire.attack import attack
from benchmarks.wire.growth import growth
from benchmarks.wire.latency import latency
from benchmarks.wire.misses import misses
from benchmarks.wire.mixes import mixes
from benchmarks.wire.proxy import proxied
from benchmarks.wire.real_clients import real_clients
from benchmarks.wire.start import cold_start
from benchmarks.wire.throughput import throughput
from benchmarks.wire.uncached import uncached
from benchmarks.workers import workers

BENCHMARKS: Mapping[str, Callable[[Plan], Awaitable[list[Figure]]]] = {
    "hit": cached_find,
    "dispatch": missed_find,
    "client": client,
    "sqlite": uncached_find,
    "memory": resident_memory,
    "real_clients": real_clients,
    "throughput": throughput,
    "workers": workers,
    "mixes": mixes,
    "latency": latency,
    "attack": attack,
    "start": cold_start,
    "uncached": uncached,
    "misses": misses,
    "growth": growth,
    "proxy": proxied,
    "postgres": postgres,
    "ldap": ldap,
    "shared_cache": shared_cache,
}


async def run(plan: Plan, names: Collection[str]) -> dict[str, list[Figure]]:
    """Run the named benchmarks. Return their figures."""
    return {name: await measure(plan) for name, measure in BENCHMARKS.items() if name in names}
