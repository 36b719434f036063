"""Reload of the configuration: one after the other, all or nothing, and each one reported."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tornado_idv.admin.report import FAILED, INVALID, ReloadResult
from tornado_idv.config.load import ConfigFile
from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import ConfigError, IdvError, format_traceback
from tornado_idv.files import FileSignature
from tornado_idv.logs.handlers import AUDIT
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.systemd import Notifier

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
PREPARE_TIMEOUT = 120.0
"""Seconds after which backends that do not open end a reload."""
_WATCH_INTERVAL = 1.0
_NO_MANAGER = Notifier()
STOPPING = "the service is stopping"


class Watch:
    """Detects that a file is another one than ``file``, which was read last."""

    def __init__(self, file: ConfigFile) -> None:
        self.path = file.path
        self.read: FileSignature | None = file.signature
        """The signature of what was read last; ``None`` if it could not be read."""
        self._seen: FileSignature | None = file.signature

    def poll(self, now: FileSignature | None) -> bool:
        """Return whether to read the file, whose signature is ``now``.

        A file that is being written is left alone until it is the same in two polls.
        """
        is_settled, self._seen = now == self._seen, now
        return is_settled and now != self.read


class Reloader:
    """Reloads the configuration that was read first as ``file``.

    ``apply`` puts that of a file in force and returns the settings that need a restart, or raises
    an `IdvError` with everything as it was.
    ``counters`` count the reloads; ``notifier`` tells the service manager of them; ``clock``
    returns Unix time in seconds.
    """

    def __init__(
        self,
        file: ConfigFile,
        apply: Callable[[ConfigFile], Awaitable[tuple[str, ...]]],
        counters: Counters,
        notifier: Notifier = _NO_MANAGER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.last: ReloadResult | None = None
        self._watch = Watch(file)
        self._apply = apply
        self._counters = counters
        self._notifier = notifier
        self._clock = clock
        self._in_thread = DaemonThread("configuration")
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[ReloadResult] | None = None
        self._tasks: set[asyncio.Task[ReloadResult]] = set()
        self._stopped = False

    def start(self, trigger: str, **audited: str | None) -> asyncio.Task[ReloadResult]:
        """Start a reload after the one that is running; join one that has not begun to read.

        The audit log gets the arguments; ``trigger`` is the cause.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._run({"trigger": trigger, **audited}))
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return self._next

    async def reload(self, trigger: str, **audited: str | None) -> ReloadResult:
        """Do as `start`, and return the result."""
        task = self.start(trigger, **audited)
        await asyncio.wait([task])
        if task.cancelled():
            return ReloadResult(self._clock(), code=FAILED, problems=(STOPPING,))
        return task.result()

    async def watch(self, is_enabled: Callable[[], bool]) -> None:
        """Reload when the file changes, while that is enabled."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            if is_enabled():
                await self.poll()

    async def poll(self) -> None:
        """Reload if the file has changed since it was read, and rests."""
        if self._watch.poll(await self._in_thread(FileSignature.find, self._watch.path)):
            await self.reload("watch")

    def stop(self) -> None:
        """Cancel the running reload, which leaves everything as it was, and allow no other."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, audited: dict[str, str | None]) -> ReloadResult:
        async with self._lock:
            self._next = None  # the file is read now: a later caller may have changed it since
            self._notifier.reloading()
            result = await self._attempt()
            self._notifier.ready()
        self.last = result
        record(result, self._counters, audited)
        return result

    async def _attempt(self) -> ReloadResult:
        if self._stopped:
            return ReloadResult(self._clock(), code=FAILED, problems=(STOPPING,))
        path = self._watch.path
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT):
                self._watch.read = await self._in_thread(FileSignature.find, path)
                file = await self._in_thread(ConfigFile.read, path)
                needs_restart = await self._apply(file)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error, self._clock())
        return ReloadResult(self._clock(), needs_restart)


def failure(error: Exception, at: float) -> ReloadResult:
    """Return the result of a reload that ended with this error."""
    problems: tuple[str, ...] = (f"unhandled exception: {type(error).__name__}",)
    code = FAILED
    match error:
        case ConfigError():
            code, problems = INVALID, tuple(str(error).splitlines())
        case IdvError():
            problems = (str(error),)
        case TimeoutError():
            problems = (f"not everything could be opened within {PREPARE_TIMEOUT:g} s",)
        case _:
            _log.error("unhandled exception:\n%s", format_traceback(error))
    return ReloadResult(at, code=code, problems=problems)


def record(result: ReloadResult, counters: Counters, audited: dict[str, str | None]) -> None:
    """Count and log a reload."""
    counters.count_reload(succeeded=result.code is None, at=result.at)
    if result.code is not None:
        text = "configuration not reloaded, the old one stays in force:\n%s"
        _log.error(text, "\n".join(result.problems))
    elif result.needs_restart:
        text = "configuration reloaded; these settings take effect after a restart: %s"
        _log.warning(text, ", ".join(result.needs_restart))
    else:
        _log.info("configuration reloaded")
    extra: dict[str, object] = {"result": "failed" if result.code else "ok", **audited}
    if result.code is None:
        extra["needs_restart"] = list(result.needs_restart)
    else:
        extra["problem"] = result.problems[0]
    _audit.info("reloaded", extra=extra)
