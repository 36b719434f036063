"""Protection of a commit from SIGINT and SIGTERM."""

from __future__ import annotations

import signal


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM up to the end of the process, in the main thread.

    For a command during its commit: the result must be reported.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
