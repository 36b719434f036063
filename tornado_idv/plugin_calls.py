"""Calls of plugins with a time limit. Descriptions of failures contain no value of a user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tornado_idv.errors import Broken, LookupFailed

ResultT = TypeVar("ResultT")


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    Otherwise a caught `CancelledError` comes from something that the task awaited.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def bounded(seconds: float, call: Awaitable[ResultT]) -> ResultT:
    """Return the result of a plugin's call; raises `TimeoutError` after ``seconds``.

    A `CancelledError` of the plugin's own work is raised as `Broken`: it must not end this task.
    """
    try:
        async with asyncio.timeout(seconds):
            return await call
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise Broken("its own work was cancelled") from None


def failure_reason(error: Exception) -> str:
    """Return why a plugin's call failed; another message may contain a query or a key id."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    return error.reason if isinstance(error, LookupFailed) else type(error).__name__
