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


class ThreadResolver(AbstractResolver):
    """Calls the system's resolver, each time in a new thread; waits ``timeout`` seconds for it.

    The connector caches results for some seconds and resolves a name once at a time, so
    there are at most as many threads as host names. They are daemon threads: the system's
    resolver cannot be cancelled and may take a minute.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raises `OSError`, of which `TimeoutError` is one."""
        addresses: Future[list[Any]] = Future()
        addresses.set_running_or_notify_cancel()  # it cannot be cancelled from now on
        arguments = (addresses, host, port, family)
        threading.Thread(target=_resolve, args=arguments, name="resolver", daemon=True).start()
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
