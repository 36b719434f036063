"""Reload of the configuration in all processes: the part of the supervisor, and of each process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tornado_idv.admin.report import FAILED, ReloadResult
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.files import FileSignature
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.limiters import Limiters
from tornado_idv.service.needs_restart import needs_restart
from tornado_idv.service.prepared import Prepared
from tornado_idv.service.reload import PREPARE_TIMEOUT, STOPPING, Watch, failure, record
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.child import Child
from tornado_idv.workers.control import Message
from tornado_idv.workers.fan_out import FanOut, Replies

_COMMIT_TIMEOUT = 5.0
_WATCH_INTERVAL = 1.0

Steps = Generator[tuple[str, Message, float], Replies | None, ReloadResult]
"""A reload: it yields commands with their timeouts, gets the replies and returns the result."""


@dataclass
class Configuration:
    """Configuration with which new processes are started."""

    file: ConfigFile
    settings: Settings


class ReloadAll:
    """Has every process prepare a configuration, and put it in force if all of them can.

    A process that has not prepared it by then is given to ``replace``, which starts another one.
    ``limiters`` are those that new processes are started with.
    """

    def __init__(
        self,
        current: Configuration,
        kinds: Mapping[str, type[AnyBackend]],
        limiters: Limiters,
        notifier: Notifier,
        counters: Counters,
    ) -> None:
        self.last: ReloadResult | None = None
        self._current = current
        self._started = current.settings
        self._kinds = kinds
        self._limiters = limiters
        self._notifier = notifier
        self._counters = counters
        self._watch = Watch(current.file)
        self._watch_at = 0.0
        self._running: list[Callable[[ReloadResult], object]] | None = None
        self._waiting: list[tuple[dict[str, str | None], Callable[[ReloadResult], object]]] = []
        self._audited: dict[str, str | None] = {}
        self._stopped = False

    def attach(
        self,
        fan_out: FanOut,
        processes: Callable[[], Iterable[Child]],
        replace: Callable[[Child], object],
    ) -> None:
        """Use these processes."""
        self._fan_out = fan_out
        self._processes = processes
        self._replace = replace

    def start(
        self,
        trigger: str,
        done: Callable[[ReloadResult], object] = lambda _: None,
        **audited: str | None,
    ) -> None:
        """Reload, after a reload that is running; ``done`` is called with the result."""
        self._waiting.append(({"trigger": trigger, **audited}, done))
        if self._running is None:
            self._begin()

    def poll(self, now: float) -> None:
        """Reload if the file has changed, where `server.watch_config` says so."""
        if now < self._watch_at or not self._current.settings.server.watch_config:
            return
        self._watch_at = now + _WATCH_INTERVAL
        if self._watch.poll(FileSignature.find(self._watch.path)):
            self.start("watch")

    def stop(self) -> None:
        """Let no configuration be put in force any more."""
        self._stopped = True

    def _begin(self) -> None:
        (self._audited, _), *_ = self._waiting
        self._running, self._waiting = [done for _, done in self._waiting], []
        self._advance(self._reload(), None)

    def _advance(self, steps: Steps, replies: Replies | None) -> None:
        """Send the next command of a reload to all processes; its replies advance the reload."""
        try:
            command, args, timeout = steps.send(replies)
        except StopIteration as end:
            result = end.value
            self.last = result
            record(result, self._counters, self._audited)
            if not self._stopped:
                self._notifier.ready()
            done, self._running = self._running or [], None
            for each in done:
                each(result)
            if self._waiting:
                self._begin()
        else:
            self._send(command, args, timeout, partial(self._advance, steps))

    def _reload(self) -> Steps:
        if self._stopped:
            return ReloadResult(time.time(), code=FAILED, problems=(STOPPING,))
        self._notifier.reloading()
        self._watch.read = FileSignature.find(self._watch.path)
        try:
            file = ConfigFile.read(self._watch.path)
            settings = file.load(self._kinds, os.environ)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error, time.time())

        asked = self._asked()
        content = {"content": file.content.decode()}
        replies = yield "prepare", content, PREPARE_TIMEOUT + 10.0
        problem = _problem(replies or [], {child.pid for child in asked if child.preparing})
        if problem or self._stopped:
            self._send("abort", {}, _COMMIT_TIMEOUT, lambda _: None)
            code, problems = problem or (FAILED, (STOPPING,))
            return ReloadResult(time.time(), code=code, problems=problems)

        self._current.file, self._current.settings = file, settings
        self._limiters.configure(settings.limits)
        prepared = {each["pid"] for each in replies or [] if "ended" not in each}
        # Others were started meanwhile, with the old configuration.
        for child in self._asked():
            if child.pid not in prepared:
                self._replace(child)
        replies = yield "commit", {}, _COMMIT_TIMEOUT
        failed = {each["pid"] for each in replies or [] if "error" in each}
        for child in self._processes():
            if child.pid in failed:
                self._replace(child)
        return ReloadResult(time.time(), needs_restart(self._started, settings))

    def _asked(self) -> list[Child]:
        return [child for child in self._processes() if child.phase != "draining"]

    def _send(
        self, command: str, args: Message, timeout: float, done: Callable[[Replies], object]
    ) -> None:
        self._fan_out.send(self._asked(), command, args, timeout, done)


def _problem(replies: Replies, preparing: set[int]) -> tuple[str, tuple[str, ...]] | None:
    """Return why the first process that could not prepare could not, if there is one."""
    for each in replies:
        if result := each.get("result"):
            return result["code"], tuple(result["problems"])
        error = each.get("error")
        if "ended" in each and each["pid"] in preparing:
            error = "ended while it prepared the configuration"
        if error is not None:
            return FAILED, (f"{each['name']} (pid {each['pid']}): {error}",)
    return None


class PreparedReload:
    """Does the commands ``prepare``, ``commit`` and ``abort`` of the supervisor in one process.

    ``prepare`` opens what a configuration needs; ``file`` is the one that was read first.
    """

    def __init__(
        self, file: ConfigFile, prepare: Callable[[ConfigFile], Awaitable[Prepared]]
    ) -> None:
        self._file = file
        self._prepare = prepare
        self._prepared: Prepared | None = None
        self._lock = asyncio.Lock()

    async def execute(self, command: str, args: Message) -> Message | None:
        """Do a command after earlier ones; return the problems of one that cannot be prepared."""
        async with self._lock:
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                if command == "commit":
                    prepared.commit()
                else:
                    await prepared.abort()
            if command != "prepare":
                return None
            # The content is the supervisor's, so that all processes have the same configuration.
            file = replace(self._file, content=args["content"].encode())
            try:
                async with asyncio.timeout(PREPARE_TIMEOUT):
                    self._prepared = await self._prepare(file)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                result = failure(error, time.time())
                return {"code": result.code, "problems": result.problems}
            return None
