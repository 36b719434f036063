"""An event loop in a thread, for servers of tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def in_thread(
    opened: AbstractAsyncContextManager[T],
) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """Enter a context in the loop of a new thread; yield its value and the loop."""
    started: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with opened as value:
            started.set_result((value, asyncio.get_running_loop(), stop))
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    value, loop, stop = started.result(timeout=10)
    try:
        yield value, loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)
