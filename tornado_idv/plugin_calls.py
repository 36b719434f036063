"""Cancellation in calls of plugins."""

import asyncio


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    If not, a caught `CancelledError` means that an awaited task or future was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
