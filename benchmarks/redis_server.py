"""A Redis server without persistence, and the setting of a shared cache in it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.wire.process import free_port

_PROBE_INTERVAL = 0.01
_TIMEOUT = 10.0
_SECRET = "measured" * 4


def missing() -> str | None:
    """Return the reason why no server can run, or ``None``."""
    if shutil.which("redis-server") is None:
        return "Redis is not installed; on Debian: apt-get install redis-server"
    return None


def shared_cache(port: int) -> str:
    """Return the line of ``config.yaml`` for a shared cache on a port.

    The timeout is long, so other load on the machine does not cause misses.
    """
    options = f"kind: redis, url: 'redis://127.0.0.1:{port}/0', secret: {_SECRET}, timeout: 1s"
    return f"shared_cache: {{{options}}}"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[int]:
    """Run a server. Yield its port. Raises `TimeoutError` if it does not start."""
    port = free_port()
    process = subprocess.Popen(  # noqa: ASYNC220 it takes no time
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            while not await _accepts(port):  # noqa: ASYNC110 the server has no event to wait for
                await asyncio.sleep(_PROBE_INTERVAL)
        yield port
    finally:
        process.kill()
        process.wait()


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
