"""Requests one after the other, each to a random process, and the results of its cache."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path


async def send(ports: Sequence[int], head: bytes, bodies: Iterable[bytes]) -> int:
    """Send requests with the same head. Return their number."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    count = 0
    for body in bodies:
        reader, writer = random.choice(connections)
        writer.write(head + body)
        received = await reader.readuntil(b"\r\n\r\n")
        length = received.lower().partition(b"content-length:")[2].split()[0]
        await reader.readexactly(int(length))
        count += 1
    for _, writer in connections:
        writer.close()
    return count


def cache_shares(logs: Iterable[Path]) -> dict[str, float]:
    """Return the fractions of lookups by the ``cache`` field of access logs."""
    counts: Counter[str] = Counter()
    for log in logs:
        lines = log.read_text(encoding="utf-8").splitlines()
        counts.update(json.loads(line)["cache"] for line in lines if '"cache"' in line)
    shares = {name: count / counts.total() for name, count in counts.items()}
    return dict.fromkeys(("hit", "shared", "miss"), 0.0) | shares
