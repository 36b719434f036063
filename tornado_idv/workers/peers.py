"""Connections of the manager process to workers, by Unix sockets whose addresses are no files.

The kernel chooses an address in the abstract namespace, which needs no folder and is free again
when the process ends. Other users can connect to it, and other containers where they share the
network: both ends check that the other is a process that could as well be debugged by this one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing

from tornado_idv.errors import StartError
from tornado_idv.workers.channel import MAX_LINE, Connection


@asynccontextmanager
async def listening(serve: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections; yield the address. Raises `StartError` where there are no Unix sockets."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if _is_own(writer.get_extra_info("socket")):
                await serve(Connection(reader, writer))

    try:
        sock = socket.socket(socket.AF_UNIX)
    except OSError as error:
        text = f"server.workers needs Unix sockets: {error.strerror}; allow AF_UNIX"
        raise StartError(text) from None
    sock.bind("")
    with closing(await asyncio.start_unix_server(accept, sock=sock, limit=MAX_LINE)):
        yield str(sock.getsockname(), "latin-1")


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    """Yield a connection to a process; raises `ConnectionError` if it has ended."""
    with ExitStack() as opened:
        sock = opened.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(0)
        sock.connect(address.encode("latin-1"))
        if not _is_own(sock):
            raise ConnectionRefusedError
        connection = await Connection.on(sock)
        opened.pop_all()
    try:
        yield connection
    finally:
        await connection.close()


def _is_own(sock: socket.socket) -> bool:
    """Return whether the other end is a process of this user, which is visible from here."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return bool(pid > 0 and user == os.geteuid())
