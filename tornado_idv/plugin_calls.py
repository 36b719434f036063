"""Cancellation in calls of plugins."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    Otherwise, a caught `CancelledError` comes from an awaited object.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
