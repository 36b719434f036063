"""Resolves host names in threads of their own.

The loop's own resolver has few threads, which all backends share: one name server that
does not respond would keep the others from connecting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

_Name = tuple[str, int, socket.AddressFamily]


class ThreadResolver(AbstractResolver):
    """Calls the system's resolver in a thread, and waits ``timeout`` seconds for it.

    The system's resolver cannot be cancelled and may take a minute. A request for a name that
    is still being resolved joins that call, so there are at most as many threads as names. They
    are daemon threads.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running: dict[_Name, Future[list[Any]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raises `OSError`, of which `TimeoutError` is one."""
        name = (host, port, family)
        addresses = self._running.get(name) or self._start(name)
        async with asyncio.timeout(self._timeout):
            found = await asyncio.wrap_future(addresses)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=family,
                proto=proto,
                flags=_NUMERIC,
            )
            for family, _, proto, _, address in found
        ]

    def _start(self, name: _Name) -> Future[list[Any]]:
        addresses: Future[list[Any]] = Future()
        addresses.set_running_or_notify_cancel()  # it cannot be cancelled from now on
        arguments = (addresses, *name)
        threading.Thread(target=_resolve, args=arguments, name="resolver", daemon=True).start()
        self._running[name] = addresses
        # After it is kept, since the callback is called at once if the thread has ended.
        addresses.add_done_callback(lambda _: self._running.pop(name))
        return addresses

    async def close(self) -> None:
        """Nothing to release."""


def _resolve(
    addresses: Future[list[Any]], host: str, port: int, family: socket.AddressFamily
) -> None:
    try:
        found = socket.getaddrinfo(
            host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except OSError as error:
        addresses.set_exception(error)
    except UnicodeError:  # the connector handles errors of the system alone
        addresses.set_exception(OSError(None, "no host name"))
    else:
        addresses.set_result(found)
