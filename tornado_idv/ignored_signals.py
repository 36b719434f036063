"""Protection of a commit from SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal


def ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP until the end of the process. Call this in the main thread.

    A command calls this during a commit, so that it can still report the result.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
