"""Calls to plugins with a timeout. Descriptions of their failures contain no value of a user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tornado_idv.errors import Broken, LookupFailed

ResultT = TypeVar("ResultT")


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    Otherwise, a caught `CancelledError` comes from an awaited object.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def bounded(seconds: float, call: Awaitable[ResultT]) -> ResultT:
    """Return the result of a call to a plugin. Raises `TimeoutError` after ``seconds``.

    Raises `Broken` if the plugin raises `CancelledError`, because this must not end the task.
    """
    try:
        async with asyncio.timeout(seconds):
            return await call
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise Broken("its own work was cancelled") from None


def failure_reason(error: Exception) -> str:
    """Return a description of a plugin's failure, without messages that may contain a query."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    return error.reason if isinstance(error, LookupFailed) else type(error).__name__
