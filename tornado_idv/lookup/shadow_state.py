"""The comparisons of a shadow, as one process writes them into their file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
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
"""Comparisons that wait to be written; of more, the oldest are dropped."""
_INTERVAL = 5.0
"""Seconds from one write to the next."""
_CLOSE_TIMEOUT = 5.0


class ShadowState:
    """Writes the comparisons of a shadow every few seconds, in a thread.

    Neither a file that cannot be written nor one that hangs delays a lookup: ``problem`` says so.
    ``clock`` gives Unix time.
    """

    def __init__(self, path: Path, backend: str, clock: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        self._file = ShadowFile(path, backend)
        self._backend = backend
        self._clock = clock
        self._thread = DaemonThread("shadow-state")
        self._waiting = deque[Recorded](maxlen=_MAX_WAITING)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write, and create the file, so that an import of users finds one."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def record(self, query: Query, comparison: Comparison, began: float) -> None:
        """Store a comparison that began then, in Unix time."""
        self._waiting.append(Recorded(query, comparison, began))

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
            await asyncio.sleep(_INTERVAL)

    async def _write(self) -> None:
        """Write what waits, if anything; after a failure that waits again."""
        waiting = [*self._waiting]
        self._waiting.clear()
        problem = None
        try:
            await self._thread(self._file.write, waiting, self._clock())
        except Exception as error:  # noqa: BLE001 - no error of the file may end this task
            problem = str(error) if isinstance(error, StartError) else format_traceback(error)
            self._waiting = deque([*waiting, *self._waiting], _MAX_WAITING)
        if problem != self.problem:
            level = logging.ERROR if problem else logging.INFO
            text = problem or "is written again"
            _log.log(level, "backend %s: shadow.state: %s", self._backend, text)
        self.problem = problem
