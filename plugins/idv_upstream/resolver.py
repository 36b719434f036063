"""Host names to addresses, in threads that nobody else waits for.

The loop's own resolver has few threads, and all backends share them: one name server that
does not answer would keep the others from connecting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class OwnResolver(AbstractResolver):
    """Asks the system's resolver, each time in a thread of its own.

    The connector remembers what it is told for some seconds, and has at most one question
    per name under way: so there are no more threads than the backend has host names. They
    are daemons, for the system's resolver cannot be called off and may take a minute.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def work() -> None:
            came = _looked_up(host, port, family)
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(_settle, answer, came)

        threading.Thread(target=work, name="resolver", daemon=True).start()
        return await answer

    async def close(self) -> None:
        """Has nothing to give back."""


def _looked_up(
    host: str, port: int, family: socket.AddressFamily
) -> list[ResolveResult] | OSError | UnicodeError:
    try:
        found = socket.getaddrinfo(
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
        for family, _, proto, _, address in found
    ]


def _settle(
    answer: asyncio.Future[list[ResolveResult]], came: list[ResolveResult] | OSError | UnicodeError
) -> None:
    if answer.done():
        return
    if isinstance(came, list):
        answer.set_result(came)
    else:
        # The connector understands errors of the system alone.
        answer.set_exception(came if isinstance(came, OSError) else OSError(None, "no host name"))
