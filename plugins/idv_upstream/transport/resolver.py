"""Resolves host names in threads of their own.

The loop's own resolver has few threads, which all backends share: one name server that
does not respond would keep the others from connecting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class ThreadResolver(AbstractResolver):
    """Calls the system's resolver, each time in a new thread.

    The connector caches results for some seconds and resolves a name once at a time, so
    there are at most as many threads as host names. They are daemon threads: the system's
    resolver cannot be cancelled and may take a minute.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raises `OSError`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def work() -> None:
            result = _resolve(host, port, family)
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(_settle, future, result)

        threading.Thread(target=work, name="resolver", daemon=True).start()
        return await future

    async def close(self) -> None:
        """Nothing to release."""


def _resolve(
    host: str, port: int, family: socket.AddressFamily
) -> list[ResolveResult] | OSError | UnicodeError:
    try:
        addresses = socket.getaddrinfo(
            host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except (OSError, UnicodeError) as error:
        return error
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=port,
            family=family,
            proto=proto,
            flags=_NUMERIC,
        )
        for family, _, proto, _, address in addresses
    ]


def _settle(
    future: asyncio.Future[list[ResolveResult]],
    result: list[ResolveResult] | OSError | UnicodeError,
) -> None:
    if future.done():  # cancelled
        return
    if isinstance(result, list):
        future.set_result(result)
    else:
        # The connector handles errors of the system alone.
        future.set_exception(
            result if isinstance(result, OSError) else OSError(None, "no host name")
        )
