"""The queue of comparisons in one process. A thread writes it to the file of a shadow."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import StartError, format_traceback
from tornado_idv.features.shadow.file import Recorded, ShadowFile
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.kit.comparison import Comparison
from tornado_idv.lookup.source_identity import identity_of, sealed
from tornado_idv.model import ByCard, ByNickname, Query

_log = logging.getLogger(__name__)
_MAX_WAITING = 10_000
"""Maximum length of the queue. When it is full, the oldest comparison is dropped."""
_INTERVAL = 5.0
"""Seconds between writes if there are only matches."""
_MIN_INTERVAL = 0.2
"""Seconds between writes if there are mismatches. A killed process should lose few of them."""
_CLOSE_TIMEOUT = 5.0
_OF_USERS = {"breaker", "cache_ttl", "max_concurrent", "negative_ttl", "shadow", "timeout"}
"""Options of a backend that do not affect its users."""


def scope_of_users(backends: Iterable[BackendOptions], *others: object) -> bytes:
    """Return a digest of ``others``, and of all options that affect users of these backends."""
    dumps = [each.model_dump(exclude=_OF_USERS, exclude_defaults=True) for each in backends]
    return identity_of(dumps, *others)


class ShadowState:
    """Queues the comparisons of a shadow, and writes them to its file every few seconds.

    A thread writes, so a file that hangs does not delay lookups. ``problem`` is the error of the
    last write, or ``None``. ``clock`` returns Unix time.
    """

    def __init__(self, path: Path, backend: str, clock: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        self._scope = b""
        self._file = ShadowFile(path, backend)
        self._backend, self._clock = backend, clock
        self._thread = DaemonThread("shadow-state")
        self._waiting = deque[Recorded](maxlen=_MAX_WAITING)
        self._is_complete = True
        """Whether no comparison was lost since the last successful write began."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    def start(self, problem_of_shadow: Callable[[], str | None] = lambda: None) -> None:
        """Create the file, because `ShadowFile.discard` ignores a missing one. Write regularly.

        ``problem_of_shadow`` returns the reason why nothing is compared, or ``None``.
        """
        self._problem_of_shadow = problem_of_shadow
        self._task = asyncio.get_running_loop().create_task(self._run())

    def follow(self, scope: bytes) -> None:
        """Set the `scope_of_users` of the current settings. It is stored with the comparisons."""
        # The queue may have comparisons of former settings. So begin again, as after a loss.
        self._is_complete &= self._scope in (b"", scope)
        self._scope = scope

    def record(self, query: Query, comparison: Comparison, began: float) -> None:
        """Queue a comparison that began at a Unix time. A mismatch triggers a write."""
        self._is_complete &= len(self._waiting) < _MAX_WAITING
        self._waiting.append(Recorded(query, comparison, began))
        if comparison.result != "match":
            self._wake.set()

    async def due(self, age: float, count: int) -> list[Query]:
        """Return up to ``count`` queries for a new comparison, as `ShadowFile.due` does."""
        try:
            texts: list[str] = await self._thread(self._file.due, self._clock(), age, count)
        except StartError:  # the next write reports the error
            return []
        return [ByNickname(each[1:]) if each.startswith("@") else ByCard(each) for each in texts]

    async def close(self, *, discard: bool = False) -> None:
        """Write the queue and stop. With ``discard``, delete all comparisons afterwards.

        If the queue cannot be written, delete them, too: the lost comparisons may contradict them.
        If the file hangs, the method gives up after 5 s.
        """
        if self._task is not None:
            self._task.cancel()
            self._problem_of_shadow = lambda: None
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    if self._writing is not None:
                        await self._writing
                    await self._write()
                    if discard or self._waiting:
                        with suppress(StartError, OSError):
                            await self._thread(self._file.discard, self._clock(), "MEMORY")

    async def _run(self) -> None:
        while True:
            self._writing = asyncio.ensure_future(self._write())
            await asyncio.shield(self._writing)
            await asyncio.sleep(_MIN_INTERVAL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._wake.wait()
            self._wake.clear()

    async def _write(self) -> None:
        """Write the queue to the file. After a failure, return the comparisons to the queue."""
        # An empty queue is written, too: the file records the time of the last write.
        problem, waiting, is_complete = None, [*self._waiting], self._is_complete
        self._waiting.clear()
        # If comparisons were lost before this write, it discards all stored comparisons. A loss
        # during this write has the same effect in the next write.
        self._is_complete = True
        write = partial(self._file.write, waiting, self._clock(), is_complete=is_complete)
        try:
            write = partial(write, problem=self._problem_of_shadow())
            await self._thread(lambda scope: write(scope=sealed(scope)), self._scope)
        except Exception as error:  # noqa: BLE001 - no error of the file may end this task
            problem = str(error) if isinstance(error, StartError) else format_traceback(error)
            waiting += self._waiting
            self._is_complete &= is_complete and len(waiting) <= _MAX_WAITING
            self._waiting = deque(waiting, _MAX_WAITING)
        if problem != self.problem:
            level = logging.ERROR if problem else logging.INFO
            text = problem or "is written again"
            _log.log(level, "backend %s: shadow.state: %s", self._backend, text)
        self.problem = problem
