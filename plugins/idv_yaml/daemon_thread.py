"""Blocking work off the event loop, which does not hold up the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_daemon_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> asyncio.Future[Result]:
    """As `asyncio.to_thread`, but neither the event loop nor Python waits for it at exit.

    A fixture of 300,000 users takes 14 s to parse: that long a stop would have no effect.
    """
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()  # a caller that leaves does not cancel it

    def run() -> None:
        try:
            done.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)

    Thread(target=run, name=function.__name__, daemon=True).start()
    return asyncio.wrap_future(done)
