"""aiohttp's client and nothing else: how fast one core can ask another service.

Run as ``python -m benchmarks.peers.aiohttp_client FILE USERS SECONDS``; `contract` says what is
in the file. It writes one line of JSON: how many requests were answered, in how many
seconds, and how many seconds of the processor they took.
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

from benchmarks import people

_CALLERS = 32
_TO_CONNECT = 0.1


async def ask(session: aiohttp.ClientSession, urls: Iterator[str], until: float) -> int:
    """Asks one after the other until then; how many it were."""
    asked = 0
    while time.perf_counter() < until:
        async with session.get(next(urls)) as response:
            response.raise_for_status()
            await response.read()
        asked += 1
    return asked


async def crowd(session: aiohttp.ClientSession, urls: Iterator[str], seconds: float) -> int:
    """Many callers at once, for so long; how many requests it were."""
    until = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(ask(session, urls, until) for _ in range(_CALLERS))))


async def main(upstream: Mapping[str, str], users: int, seconds: float) -> None:
    urls = itertools.cycle(
        f"{upstream['url']}/people/{people.nickname(number)}" for number in range(users)
    )
    headers = {"Authorization": f"Bearer {upstream['token']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        await crowd(session, urls, _TO_CONNECT)
        began, used = time.perf_counter(), time.process_time()
        requests = await crowd(session, urls, seconds)
        took, used = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"requests": requests, "seconds": took, "cpu": used}))


if __name__ == "__main__":
    _, file, number_of_users, some_seconds = sys.argv
    told = json.loads(Path(file).read_bytes())
    uvloop.run(main(told["upstream"], int(number_of_users), float(some_seconds)))
