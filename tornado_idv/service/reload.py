"""Reloads of the configuration: one at a time, all or nothing, each with a reported result."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pluggy
from pydantic import BaseModel

from tornado_idv.admin.report import FAILED, INVALID, ReloadResult
from tornado_idv.config.address import Address
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import LimitSettings, Settings
from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import ConfigError, IdvError, StartError, format_traceback
from tornado_idv.files import FileSignature
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.limits import FailedAuthLimiter, KeyLimiter
from tornado_idv.logs.handlers import AUDIT
from tornado_idv.metrics.counters import Counters
from tornado_idv.options import APPLIED
from tornado_idv.service.part import Prepared
from tornado_idv.service.sockets import SocketFiles

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
PREPARE_TIMEOUT = 120.0
"""Maximum seconds for each of the two steps of a reload: read the file, open the backends."""
STOPPING = "the service is stopping"

ModelT = TypeVar("ModelT", bound=BaseModel)
Audited = dict[str, str | None]
"""The fields in the audit log that describe the cause of a reload."""


async def prepare_file(
    file: ConfigFile, kinds: Kinds, prepare: Callable[[Settings], Awaitable[Prepared]]
) -> Prepared:
    """Load a file and prepare its settings; raises `ConfigError`, `StartError`, `TimeoutError`."""
    async with asyncio.timeout(PREPARE_TIMEOUT):
        # In a thread: a long file would delay responses, and a secret's file may hang.
        settings = await DaemonThread("configuration")(file.load, kinds, os.environ)
        with file.located():
            return await prepare(settings)


class Reloader:
    """Reloads the configuration. ``file`` is the file as it was read at the start.

    ``apply`` puts the new file into use. If it fails, it must change nothing, and return or raise
    the reason. ``begin`` is called before the file is read, ``end`` with the reload's result.
    """

    def __init__(
        self,
        file: ConfigFile,
        apply: Callable[[ConfigFile], Awaitable[ReloadResult]],
        begin: Callable[[Audited], object],
        end: Callable[[ReloadResult, Audited], object],
    ) -> None:
        self.last: ReloadResult | None = None
        self._path = file.path
        self._read = file.signatures
        self._seen = {**self._read}
        self._apply = apply
        self._begin = begin
        self._end = end
        self._in_thread = DaemonThread("configuration")
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[ReloadResult] | None = None
        self._tasks: set[asyncio.Task[ReloadResult]] = set()
        self._stopped = False

    def start(self, trigger: str, **audited: str | None) -> asyncio.Task[ReloadResult]:
        """Queue a reload behind the running one. If a reload is queued already, join it.

        ``trigger`` is the cause. The audit log gets all arguments.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._run({"trigger": trigger, **audited}))
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return self._next

    async def reload(self, trigger: str, **audited: str | None) -> ReloadResult:
        """Start a reload as `start` does, wait for its end, and return its result."""
        task = self.start(trigger, **audited)
        await asyncio.wait([task])
        if task.cancelled():
            return failure(StartError(STOPPING))
        return task.result()

    async def watch(self, files: SocketFiles, is_enabled: Callable[[], bool]) -> None:
        """Check the socket ``files`` until `stop`. While ``is_enabled()``, also call `poll`."""
        while True:
            await asyncio.sleep(1)
            if not self._stopped:  # after the stop, a new service may replace them
                files.check()
            if is_enabled():
                await self.poll()

    async def poll(self) -> None:
        """Reload if the configuration file, or a file named in it, has changed."""
        if await self._in_thread(self._has_changed):
            await self.reload("watch")

    def stop(self) -> None:
        """Cancel the running reload, so that it changes nothing, and refuse later reloads."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel and refuse reloads as `stop` does, and wait until the running one has ended."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, audited: Audited) -> ReloadResult:
        async with self._lock:
            self._next = None  # the file is read now: later callers need a further reload
            self._begin(audited)
            self.last = result = await self._attempt()
            self._end(result, audited)
        return result

    async def _attempt(self) -> ReloadResult:
        if self._stopped:
            return failure(StartError(STOPPING))
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT):
                file = await self._in_thread(self._read_file)
            return await self._apply(file)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error)

    def _read_file(self) -> ConfigFile:
        self._read = {self._path: FileSignature.find(self._path)}
        file = ConfigFile.read(self._path)
        self._read = file.signatures
        return file

    def _has_changed(self) -> bool:
        """A change counts only if two calls find the same state: a file may be incomplete."""
        read = {**self._read}  # a reload may add files meanwhile
        before, self._seen = self._seen, {each: FileSignature.find(each) for each in read}
        return read != self._seen == before


def failure(error: Exception) -> ReloadResult:
    """Return the result of a reload that failed with this error."""
    match error:
        case ConfigError():
            return ReloadResult(code=INVALID, problems=tuple(str(error).splitlines()))
        case IdvError():
            problem = str(error)
        case TimeoutError():
            problem = f"a file, backend or key store did not open in {PREPARE_TIMEOUT:g} s"
        case _:
            problem = f"unhandled exception: {type(error).__name__}"
            _log.error("unhandled exception:\n%s", format_traceback(error))
    return ReloadResult(code=FAILED, problems=(problem,))


def record(result: ReloadResult, counters: Counters, audited: Audited) -> None:
    """Count and log the result of a reload."""
    counters.reloads["failed" if result.code else "ok"] += 1
    if result.code is not None:
        text = "configuration not reloaded, the old one stays in force:\n%s"
        _log.error(text, "\n".join(result.problems))
        extra = {"result": "failed", **audited, "problem": result.problems[0]}
        _audit.info("reloaded", extra=extra)
        return
    counters.last_reload_success = result.at
    if result.needs_restart:
        text = "configuration reloaded; these settings take effect after a restart: %s"
        _log.warning(text, ", ".join(result.needs_restart))
    else:
        _log.info("configuration reloaded")
    needs_restart = list(result.needs_restart)
    _audit.info("reloaded", extra={"result": "ok", **audited, "needs_restart": needs_restart})


def applicable(
    in_force: ModelT, settings: ModelT, prefix: str = ""
) -> tuple[ModelT, tuple[str, ...]]:
    """Return the settings to use after a reload, and the names of changes that need a restart.

    Settings that need a restart keep their values from ``in_force``. A new certificate is applied,
    but to turn TLS on or off needs a restart.
    """
    values: dict[str, object] = {}
    names: list[str] = []
    for name, described in type(settings).model_fields.items():
        path, before, after = prefix + name, getattr(in_force, name), getattr(settings, name)
        if APPLIED in described.metadata or before == after:
            continue
        if not isinstance(before, BaseModel) or type(before) is not type(after):
            values[name] = before
            names.append(path)
        elif path != "server.tls":
            values[name], inner = applicable(before, after, f"{path}.")
            names += inner
    return settings.model_copy(update=values), tuple(names)


class Limiters:
    """The rate limits, in memory shared with processes forked later."""

    def __init__(self, limits: LimitSettings) -> None:
        self.keys = KeyLimiter()
        self.failed_auth = FailedAuthLimiter()
        self.configure(limits)

    def configure(self, limits: LimitSettings) -> None:
        """Apply the settings. The counts of unchanged limits are kept."""
        misses = limits.misses
        self.keys.configure(limits.requests, misses.limit if misses else None)
        self.failed_auth.configure(limits.failed_auth)


@dataclass
class Configuration:
    """The configuration of a process: a file with its settings, the plugins, and the rate limits.

    All processes share the rate limits. ``generation`` increases with each reload, so processes
    with the same number have the same configuration.
    """

    file: ConfigFile
    settings: Settings
    plugins: pluggy.PluginManager
    kinds: Kinds
    limiters: Limiters
    generation: int = 0
    sockets: SocketFiles = field(default_factory=SocketFiles)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses to listen on. The option ``--port`` replaces those of the settings."""
        server, port = self.settings.server, self.file.port
        return server.addresses if port is None else (Address(server.host, port),)

    def use(self, content: str) -> ReloadResult:
        """Use this content of the file for new processes. Invalid content changes nothing."""
        signatures = {(path := self.file.path): self.file.signatures[path]}
        file = replace(self.file, content=content.encode(), signatures=signatures)
        try:
            settings = file.load(self.kinds, os.environ)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error)
        self.settings, needs_restart = applicable(self.settings, settings)
        self.file = file
        self.limiters.configure(self.settings.limits)
        self.generation += 1
        return ReloadResult(needs_restart=needs_restart)
