"""The share of requests that reach the backends, by number of processes, with a shared tier or not.

    python -m benchmarks.scale            # the simulation, for one rate and several numbers
    python -m benchmarks.scale --check    # compare it with services of 2 and 4 processes

Simulated are processes with a cache each, of least recently used users with a time to live, and
a load balancer that picks one at random for each request. The n-th user is requested 1/n**1.1
times as often as the first. The shared tier is a model: a cache of the same kind for all
processes, which is asked after their own, without a limit of its size; what is found there is
cached until it would expire there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
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

from benchmarks.plan import Plan
from benchmarks.wire import traffic
from benchmarks.wire.our_service import OurService, over_yaml
from benchmarks.wire.process import run_server

_SKEW = 1.1
_CHECKED = (2, 4)
_CHECK_USERS = 3_000
_CHECK_TTL = 1.0
_TOLERANCE = 0.03
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second of all processes together, for so many users."""

    rate: float
    users: int
    ttl: float = 300.0
    entries: int = 100_000


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of all requests: hits of the processes' caches, and lookups in the backends."""

    hits: float
    backend: float


class _Cache:
    """Users by recency, each with the time when it expires."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size
        self._expires: dict[int, float] = {}

    def get(self, user: int, now: float) -> float | None:
        """Return when a fresh user expires."""
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


async def run_for_real(folder: Path, processes: int, seconds: float) -> tuple[float, Shares]:
    """Return the rate and the shares of services over a fixture, read from their access logs."""
    plan = Plan(_CHECK_USERS, (), 1, folder, Progress(disable=True), 1, 0, Path())
    cache = f"cache: {{ttl: {_CHECK_TTL:g}s, jitter: 0, refresh_ahead: 1}}"
    names = [f"process-{processes}-{number}" for number in range(processes)]
    async with AsyncExitStack() as stack:
        service = OurService(folder, over_yaml(plan), cache=cache)
        started = [run_server(name, service, folder / f"{name}.log") for name in names]
        ports = [(await stack.enter_async_context(each)).port for each in started]
        requests, took = await _send(ports, seconds)
    logs = [(folder / f"{name}.log").read_text(encoding="utf-8") for name in names]
    lines = [json.loads(line) for log in logs for line in log.splitlines() if '"cache"' in line]
    caches = [line["cache"] for line in lines]
    return requests / took, Shares(
        caches.count("hit") / len(caches), caches.count("miss") / len(caches)
    )


async def _send(ports: Sequence[int], seconds: float) -> tuple[int, float]:
    """Send requests to random processes, for users by their weights; return number and time."""
    made = traffic.zipf(_CHECK_USERS, 0)
    connections = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    started, count = time.perf_counter(), 0
    for body in itertools.cycle(made.bodies):
        if time.perf_counter() - started >= seconds:
            break
        reader, writer = random.choice(connections)
        writer.write(made.head + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split()[0]
        await reader.readexactly(int(length))
        count += 1
    for _, writer in connections:
        writer.close()
    return count, time.perf_counter() - started


def _check(seconds: float) -> bool:
    """Print simulated and real shares; return whether they agree."""
    good = True
    for processes in _CHECKED:
        with tempfile.TemporaryDirectory() as folder:
            rate, real = asyncio.run(run_for_real(Path(folder), processes, seconds))
        load = Load(rate, _CHECK_USERS, _CHECK_TTL)
        made = simulate(load, processes, shared=False, seconds=seconds, warm_up=0)
        print(
            f"{processes} processes, {rate:.0f}/s: hits {real.hits:.3f}, simulated {made.hits:.3f}"
        )
        good &= abs(real.hits - made.hits) <= _TOLERANCE
    return good


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rate", type=float, default=1000, help="Requests a second, of all processes.")
@click.option("--users", type=click.IntRange(min=1), default=1_000_000)
@click.option("--processes", type=click.IntRange(min=1), multiple=True, default=(1, 2, 4, 8, 16))
@click.option("--seconds", type=float, default=300, help="Simulated after a warm-up of as many.")
@click.option(
    "--check", is_flag=True, help="Compare with real processes; exit with 1 if it differs."
)
def main(rate: float, users: int, processes: tuple[int, ...], seconds: float, check: bool) -> None:  # noqa: FBT001
    """Simulate caches of several processes."""
    if check:
        sys.exit(int(not _check(min(seconds, 10))))
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
