"""A PostgreSQL server with the users of the lookups."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks import dataset
from benchmarks.plan import Plan
from benchmarks.wire.process import free_port

_TIMEOUT = 60.0
_TABLE = """\
CREATE TABLE users (
    nickname text PRIMARY KEY, card_number text NOT NULL UNIQUE, plan text NOT NULL,
    profile_url text)
"""


def missing() -> str | None:
    """Return the reason why no server can run, or ``None``."""
    if _binaries() is None:
        return "PostgreSQL is not installed; on Debian: apt-get install postgresql"
    return None


@asynccontextmanager
async def running(plan: Plan, connections: int) -> AsyncIterator[str]:
    """Run a server with the plan's users on the load's core. Yield its dsn."""
    binaries = _binaries()
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="idv-benchmark-"))
    user = _user()
    if user is not None:
        shutil.chown(folder, user)
    quiet = subprocess.DEVNULL
    options: dict[str, Any] = {"user": user, "stdout": quiet, "stderr": quiet, "cwd": "/"}
    initdb = [binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust"]
    port = free_port()
    arguments = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": folder,
        "max_connections": 4 * connections,
        "fsync": "off",
    }
    try:
        await asyncio.to_thread(
            subprocess.run, [*initdb, "--no-sync"], check=True, timeout=_TIMEOUT, **options
        )
        process = subprocess.Popen(  # noqa: ASYNC220 it takes no time
            [
                *("taskset", "-c", str(plan.load_core), binaries / "postgres"),
                *("-D", folder / "data"),
                *(each for name, value in arguments.items() for each in ("-c", f"{name}={value}")),
            ],
            **options,
        )
        try:
            dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
            await _fill(dsn, plan.keys)
            yield dsn
        finally:
            process.send_signal(signal.SIGINT)  # SIGTERM would wait for the clients
            process.wait(_TIMEOUT)
    finally:
        shutil.rmtree(folder)


async def _fill(dsn: str, users: int) -> None:
    connection = await _connect(dsn)
    try:
        await connection.execute(_TABLE)
        rows = ((dataset.nickname(n), dataset.card_number(n), "Free", None) for n in range(users))
        await connection.copy_records_to_table("users", records=rows)
        await connection.execute("VACUUM ANALYZE users")
    finally:
        await connection.close()


async def _connect(dsn: str) -> asyncpg.Connection:
    """Connect when the server has started."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            return await asyncpg.connect(dsn)
        except (OSError, asyncpg.CannotConnectNowError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def _binaries() -> Path | None:
    """Return the folder of the newest installed server."""
    servers = Path("/usr/lib/postgresql").glob("*/bin/postgres")  # some folders have only clients
    newest = sorted((each.parent for each in servers), key=lambda path: int(path.parent.name))[-1:]
    found = shutil.which("postgres")
    return newest[0] if newest else Path(found).parent if found else None


def _user() -> str | None:
    """Return a user for the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {each.pw_name for each in pwd.getpwall()} else "nobody"
