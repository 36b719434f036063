"""asyncpg alone: the maximum rate of ``fetchrow`` on one core.

Run it as ``python -m benchmarks.peers.asyncpg_client FILE CALLERS USERS SECONDS``. `contract`
describes the file. It prints one line of JSON: completed lookups, seconds, and CPU seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncpg
import uvloop

from benchmarks import dataset

_WARM_UP = 0.1
_SQL = "SELECT plan, card_number, nickname, profile_url FROM users WHERE nickname = $1"


async def look_up(connection: asyncpg.Connection, names: Iterator[str], until: float) -> int:
    """Look users up one after the other until ``until``. Return their number."""
    count = 0
    while time.perf_counter() < until:
        if await connection.fetchrow(_SQL, next(names)) is None:
            raise RuntimeError("a user is missing")
        count += 1
    return count


async def run_all(
    connections: Sequence[asyncpg.Connection], names: Iterator[str], seconds: float
) -> int:
    """Run all callers for this many seconds. Return the number of lookups."""
    until = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(look_up(each, names, until) for each in connections)))


async def main(dsn: str, callers: int, users: int, seconds: float) -> None:
    names = itertools.cycle(dataset.nickname(number) for number in range(users))
    connections = [await asyncpg.connect(dsn) for _ in range(callers)]
    await run_all(connections, names, _WARM_UP)
    started, used = time.perf_counter(), time.process_time()
    requests = await run_all(connections, names, seconds)
    took, used = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"requests": requests, "seconds": took, "cpu": used}))
    for each in connections:
        await each.close()


if __name__ == "__main__":
    _, file, callers, users, seconds = sys.argv
    contract = json.loads(Path(file).read_bytes())
    uvloop.run(main(contract["upstream"]["dsn"], int(callers), int(users), float(seconds)))
