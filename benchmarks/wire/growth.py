"""Growth of the CPU time of a request with users, keys, connections, and other amounts.

For each amount, a small and a large one. A ratio of 1 means: the cost does not grow.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, ratio
from benchmarks.plan import Plan
from benchmarks.rounds import interleave
from benchmarks.wire import contenders, traffic, wrk
from benchmarks.wire.contenders import Contender
from benchmarks.wire.our_service import OurService, over_sqlite, over_yaml
from benchmarks.wire.process import Server
from benchmarks.wire.throughput import cpus
from benchmarks.wire.traffic import Mix

_KEYS = 100_000
_BATCHES = (1, 10, 100)
_CONNECTIONS = 512


@dataclass(frozen=True, slots=True)
class _Side:
    """A service and its traffic; ``base`` is the side with the small amount."""

    service: OurService
    base: str | None = None
    mix: Mix = traffic.uniform
    connections: int | None = None


async def growth(plan: Plan) -> list[Figure]:
    """Measure each amount, with a process for each."""
    if plan.skip("growth", wrk.missing()):
        return []
    sides = _sides(plan)

    async def run(server: Server, side: _Side) -> wrk.Load:
        return await wrk.load(plan, server, side.mix, side.connections)

    async with contenders.run_all(
        plan, {name: Contender(side.service) for name, side in sides.items()}
    ) as servers:
        runs: dict[str, Callable[[], Awaitable[wrk.Load]]] = {
            name: partial(run, servers[name], side) for name, side in sides.items()
        }
        loads = await interleave(plan, "growth", runs)
    figures = [
        Figure("CPU of a request", "µs", tuple(each * 1e6 for each in cpus(loads[name])), of=name)
        for name in sides
    ]
    return figures + [
        ratio(f"CPU of {name} / {side.base}", cpus(loads[name]), cpus(loads[side.base]))
        for name, side in sides.items()
        if side.base is not None
    ]


def _sides(plan: Plan) -> dict[str, _Side]:
    few, many = min(plan.users), max(plan.users)
    hit = OurService(plan.folder, over_yaml(plan))
    miss = replace(hit, backend=over_sqlite(plan, few), uncached=True)
    cached, uncached = "cached", f"uncached, {few:,} users"
    sides = {
        cached: _Side(hit),
        f"cached, {_KEYS:,} keys": _Side(replace(hit, store=_key_store(plan)), cached),
        f"cached, {_CONNECTIONS} connections": _Side(hit, cached, connections=_CONNECTIONS),
        "cached, 60 kinds of client": _Side(hit, cached, traffic.sixty_kinds),
        "cached, a tenth of the users": _Side(
            hit, cached, lambda users, seconds: traffic.uniform(users // 10, seconds)
        ),
        uncached: _Side(miss),
        f"uncached, {many:,} users": _Side(
            replace(miss, backend=over_sqlite(plan, many)), uncached
        ),
        f"uncached, {_CONNECTIONS} connections": _Side(miss, uncached, connections=_CONNECTIONS),
        "uncached, 4 backends": _Side(replace(miss, backend=_after_others(plan, few)), uncached),
    }
    for number in _BATCHES:
        base = f"a cached batch of {_BATCHES[0]}" if number > _BATCHES[0] else None
        sides[f"a cached batch of {number}"] = _Side(hit, base, partial(traffic.batches, number))
    return sides


def _after_others(plan: Plan, users: int) -> str:
    """Return the entry of a backend with the users, after three without."""
    empty = plan.folder / "empty.yaml"
    empty.write_text("users: []\n", encoding="utf-8")
    others = (f'{{name: empty{number}, kind: yaml, path: "{empty}"}}' for number in range(3))
    return ", ".join([*others, over_sqlite(plan, users)])


def _key_store(plan: Plan) -> Path:
    """Make a key store with `_KEYS` keys."""
    store, listed = plan.folder / "keys.db", plan.folder / "keys.jsonl"
    if store.exists():  # of an earlier run with the same folder
        return store
    with listed.open("w", encoding="utf-8") as file:
        for number in range(_KEYS):
            digest = hashlib.sha256(str(number).encode()).hexdigest()
            file.write(json.dumps({"id": f"key{number}", "sha256": digest}) + "\n")
    command = [
        "-m",
        "tornado_idv",
        "keys",
        "import",
        "--create",
        "--store",
        str(store),
        str(listed),
    ]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return store
