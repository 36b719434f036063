"""aiohttp's client alone: the maximum request rate of one core to an upstream.

Run it as ``python -m benchmarks.peers.aiohttp_client FILE USERS SECONDS``. `contract` describes the
file. It prints one line of JSON: completed requests, seconds, and CPU seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import uvloop

from benchmarks import dataset

_CLIENTS = 32
_WARM_UP = 0.1


async def send_requests(session: aiohttp.ClientSession, urls: Iterator[str], until: float) -> int:
    """Send requests one after the other until ``until``. Return their number."""
    count = 0
    while time.perf_counter() < until:
        async with session.get(next(urls)) as response:
            response.raise_for_status()
            await response.read()
        count += 1
    return count


async def run_clients(session: aiohttp.ClientSession, urls: Iterator[str], seconds: float) -> int:
    """Run all clients for this many seconds. Return the number of requests."""
    until = time.perf_counter() + seconds
    return sum(
        await asyncio.gather(*(send_requests(session, urls, until) for _ in range(_CLIENTS)))
    )


async def main(upstream: Mapping[str, str], users: int, seconds: float) -> None:
    urls = itertools.cycle(
        f"{upstream['url']}/people/{dataset.nickname(number)}" for number in range(users)
    )
    headers = {"Authorization": f"Bearer {upstream['token']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        await run_clients(session, urls, _WARM_UP)
        started, used = time.perf_counter(), time.process_time()
        requests = await run_clients(session, urls, seconds)
        took, used = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"requests": requests, "seconds": took, "cpu": used}))


if __name__ == "__main__":
    _, file, number_of_users, some_seconds = sys.argv
    contract = json.loads(Path(file).read_bytes())
    uvloop.run(main(contract["upstream"], int(number_of_users), float(some_seconds)))
