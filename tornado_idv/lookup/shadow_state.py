"""The comparisons of a shadow, as one process writes them into their file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import StartError, format_traceback
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.lookup.shadow_file import Recorded, ShadowFile
from tornado_idv.model import Query

_log = logging.getLogger(__name__)
_MAX_WAITING = 10_000
"""Comparisons that wait to be written; more are counted as skipped."""
_CLOSE_TIMEOUT = 5.0


class ShadowState:
    """Writes the comparisons of a shadow every ``interval`` seconds, in a thread.

    Neither a file that cannot be written nor one that hangs delays a lookup: ``problem`` says so.
    ``clock`` gives Unix time.
    """

    def __init__(
        self,
        path: Path,
        backend: str,
        interval: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.problem: str | None = None
        self._file = ShadowFile(path, backend)
        self._backend = backend
        self._interval = interval
        self._clock = clock
        self._thread = DaemonThread("shadow-state")
        self._waiting: list[Recorded] = []
        self._skipped = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write, and create the file, so that an import of users finds one."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def record(self, query: Query, comparison: Comparison, began: float) -> None:
        """Store a comparison that began then, in Unix time."""
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(Recorded(query, comparison, began))
        else:
            self._skipped += 1

    def skip(self) -> None:
        """Count a lookup that was not compared."""
        self._skipped += 1

    async def close(self) -> None:
        """Write what waits; a file that hangs is left after some seconds."""
        if self._task is not None:
            self._task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await self._write()

    async def _run(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(self._interval)

    async def _write(self) -> None:
        """Write what waits, if anything; after a failure that waits again."""
        waiting, self._waiting = self._waiting, []
        skipped, self._skipped = self._skipped, 0
        try:
            await self._thread(self._file.write, waiting, skipped, self._clock())
        except Exception as error:  # noqa: BLE001 - no error of the file may end this task
            is_ours = isinstance(error, StartError)
            problem = str(error) if is_ours else f"failed with {type(error).__name__}"
            if self.problem is None:
                where = "" if is_ours else f"\n{format_traceback(error)}"
                _log.error("backend %s: shadow.state: %s%s", self._backend, problem, where)
            self.problem = problem
            self._skipped += skipped + max(0, len(waiting) + len(self._waiting) - _MAX_WAITING)
            self._waiting = (waiting + self._waiting)[:_MAX_WAITING]
        else:
            if self.problem is not None:
                _log.info("backend %s: shadow.state is written again", self._backend)
            self.problem = None
