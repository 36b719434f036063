"""The share of requests to the backends, by number of processes, with and without a shared cache.

    python -m benchmarks.scale            # the simulation, for one rate and several numbers
    python -m benchmarks.scale --check    # compare it with 2, 4 and 8 processes, and a Redis server

The simulation has processes with an LRU cache each, with a time to live. A load balancer chooses a
random process for each request. The n-th user is requested 1/n**1.1 times as often as the first.
The shared cache is modelled as a cache without a size limit, queried after a miss in the cache of
the process. An answer from it keeps its expiry.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.progress import Progress

from benchmarks import redis_server
from benchmarks.plan import Plan
from benchmarks.wire import traffic
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.process import run_server
from benchmarks.wire.sequential import cache_shares, send

_SKEW = 1.1
_CHECKED = (2, 4, 8)
_CHECK_USERS = 3_000
_CHECK_TTL = 1.0
_TOLERANCE = 0.03
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second for all processes together, and the number of users."""

    rate: float
    users: int
    ttl: float = 300.0
    entries: int = 100_000


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of all requests: hits in caches of processes, and lookups in backends."""

    hits: float
    backend: float


class _Cache:
    """Users by recency, each with its expiry."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size
        self._expires: dict[int, float] = {}

    def get(self, user: int, now: float) -> float | None:
        """Return the expiry of a fresh user."""
        expires = self._expires.pop(user, 0.0)
        if expires <= now:
            return None
        self._expires[user] = expires
        return expires

    def put(self, user: int, expires: float) -> None:
        self._expires[user] = expires
        if self._size is not None and len(self._expires) > self._size:
            del self._expires[next(iter(self._expires))]


def simulate(
    load: Load, processes: int, *, shared: bool, seconds: float, warm_up: float, seed: int = 7
) -> Shares:
    """Return the shares in ``seconds`` of traffic after ``warm_up`` seconds."""
    chooser = random.Random(seed)
    caches = [_Cache(load.entries) for _ in range(processes)]
    tier = _Cache()
    hits = lookups = 0
    count, ignored = int(load.rate * (warm_up + seconds)), int(load.rate * warm_up)
    for number, user in enumerate(itertools.islice(_requested(load.users, chooser), count)):
        now, cache = number / load.rate, caches[int(chooser.random() * processes)]
        if cache.get(user, now) is not None:
            hits += number >= ignored
            continue
        expires = tier.get(user, now) if shared else None
        if expires is None:
            lookups += number >= ignored
            expires = now + load.ttl
            tier.put(user, expires)
        cache.put(user, expires)
    return Shares(hits / (count - ignored), lookups / (count - ignored))


def _requested(users: int, chooser: random.Random) -> Iterator[int]:
    weights = list(itertools.accumulate(1 / rank**_SKEW for rank in range(1, users + 1)))
    while True:
        yield from chooser.choices(range(users), cum_weights=weights, k=_BATCH)


async def run_for_real(
    folder: Path, processes: int, seconds: float, shared_cache: str = ""
) -> tuple[float, Shares]:
    """Return the rate and the shares of services over a fixture, read from their access logs.

    ``shared_cache`` is the line for it in the configuration, or empty.
    """
    plan = Plan(_CHECK_USERS, (), 1, folder, Progress(disable=True), 1, 0, Path())
    cache = f"cache: {{ttl: {_CHECK_TTL:g}s, jitter: 0, refresh_ahead: 1}}"
    service = OurService(folder, over_yaml(plan), cache=cache, shared_cache=shared_cache)
    logs = [folder / f"process-{number}.log" for number in range(processes)]
    made = traffic.zipf(_CHECK_USERS, 0)
    async with AsyncExitStack() as stack:
        started = [run_server(log.stem, service, log) for log in logs]
        ports = [(await stack.enter_async_context(each)).port for each in started]
        started_at = time.perf_counter()
        count = await send(ports, made.head, _until(started_at + seconds, made.bodies))
        took = time.perf_counter() - started_at
    shares = cache_shares(logs)
    return count / took, Shares(shares["hit"], shares["miss"])


def _until(end: float, bodies: Sequence[bytes]) -> Iterator[bytes]:
    for body in itertools.cycle(bodies):
        if time.perf_counter() >= end:
            return
        yield body


async def _check(seconds: float) -> bool:
    """Print simulated and real shares. Return whether they agree."""
    good = True
    for shared, processes in itertools.product((False, True), _CHECKED):
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            line = ""
            if shared:
                line = redis_server.shared_cache(
                    await stack.enter_async_context(redis_server.running(folder))
                )
            rate, real = await run_for_real(folder, processes, seconds, line)
        load = Load(rate, _CHECK_USERS, _CHECK_TTL)
        made = simulate(load, processes, shared=shared, seconds=seconds, warm_up=0)
        print(
            f"{processes} processes, {'shared tier' if shared else 'no shared tier'}, {rate:.0f}/s:"
            f" hits {real.hits:.3f}, simulated {made.hits:.3f};"
            f" lookups {real.backend:.3f}, simulated {made.backend:.3f}",
            flush=True,
        )
        good &= abs(real.hits - made.hits) <= _TOLERANCE
        good &= abs(real.backend - made.backend) <= _TOLERANCE
    return good


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rate", type=float, default=1000, help="Requests per second for all processes.")
@click.option("--users", type=click.IntRange(min=1), default=1_000_000)
@click.option("--processes", type=click.IntRange(min=1), multiple=True, default=(1, 2, 4, 8, 16))
@click.option(
    "--seconds", type=float, default=300, help="Simulated time, after a warm-up of the same length."
)
@click.option(
    "--check", is_flag=True, help="Compare with real processes. Exit with 1 after a difference."
)
def main(rate: float, users: int, processes: tuple[int, ...], seconds: float, check: bool) -> None:  # noqa: FBT001
    """Simulate caches of several processes."""
    if check:
        sys.exit(int(not asyncio.run(_check(min(seconds, 10)))))
    print(f"{rate:g} requests/s, {users:,} users; without and with a shared tier")
    print(f"{'processes':>9} {'hits':>7} {'lookups/s':>10} {'lookups/s, shared':>18}")
    for count in processes:
        alone, tiered = (
            simulate(Load(rate, users), count, shared=shared, seconds=seconds, warm_up=seconds)
            for shared in (False, True)
        )
        each = f"{alone.backend * rate:>10.0f} {tiered.backend * rate:>18.0f}"
        print(f"{count:>9} {alone.hits:>7.3f} {each}", flush=True)


if __name__ == "__main__":
    main()
