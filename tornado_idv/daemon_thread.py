"""Calls in daemon threads, for functions that may hang."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any


class DaemonThread:
    """Calls functions in daemon threads, one at a time and in order.

    A hanging call blocks neither the event loop nor the exit of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ended = Event()  # set at the end of the last call
        self._ended.set()

    def __call__(self, function: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        """Call the function in a daemon thread after earlier calls. Return a future of its result.

        If the returned future is cancelled, the call still continues.
        """
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # after this, `cancel` has no effect
        earlier, ended = self._ended, Event()

        def run() -> None:
            earlier.wait()
            try:
                done.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)
            finally:
                ended.set()

        Thread(target=run, name=self._name, daemon=True).start()
        self._ended = ended  # after a failed start, later calls do not wait for this call
        return asyncio.wrap_future(done)
