"""Calls in daemon threads, for functions that may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any


class DaemonThread:
    """Calls functions one at a time and in order, in daemon threads.

    Neither the event loop nor the end of the process waits for a hanging call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ended = Event()  # the last call
        self._ended.set()

    def __call__(self, function: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        """Call the function in a daemon thread, after earlier calls; the future has its result.

        A call continues after its future was cancelled.
        """
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        earlier, ended = self._ended, Event()
        self._ended = ended

        def run() -> None:
            earlier.wait()
            try:
                done.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)
            finally:
                ended.set()

        Thread(target=run, name=self._name, daemon=True).start()
        return asyncio.wrap_future(done)
