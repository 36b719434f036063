"""Reload of the configuration in all processes: the part of the supervisor, and of each process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field, replace

import msgspec

from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import StartError
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.metrics.counters import Counters
from tornado_idv.reload_result import ReloadResult
from tornado_idv.service.limiters import Limiters
from tornado_idv.service.reload import (
    PREPARE_TIMEOUT,
    STOPPING,
    Prepared,
    Watch,
    applicable,
    failure,
    prepare_file,
    record,
)
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.channel import Message
from tornado_idv.workers.child import Child
from tornado_idv.workers.fan_out import Command, FanOut, Replies, Steps

_COMMIT_TIMEOUT = 5.0
_WATCH_INTERVAL = 1.0


@dataclass
class Configuration:
    """Configuration with which new processes are started."""

    file: ConfigFile
    settings: Settings


@dataclass(eq=False)
class ReloadAll:
    """Has every process prepare a configuration, and put it in force if all of them can.

    One that has not prepared it by then is ``outdated``. ``limiters`` are those that new processes
    are started with.
    """

    fan_out: FanOut
    current: Configuration
    kinds: Kinds
    limiters: Limiters
    notifier: Notifier
    counters: Counters
    last: ReloadResult | None = None
    _watch_at: float = 0.0
    _is_running: bool = False
    _stopped: bool = False
    _waiting: list[tuple[dict[str, str | None], Callable[[ReloadResult], object]]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self._watch = Watch(self.current.file)

    def start(
        self,
        trigger: str,
        done: Callable[[ReloadResult], object] = lambda _: None,
        **audited: str | None,
    ) -> None:
        """Reload, after a reload that is running; ``done`` is called with the result."""
        self._waiting.append(({"trigger": trigger, **audited}, done))
        if not self._is_running:
            self.fan_out.run(self._run())

    def poll(self, now: float) -> None:
        """Reload if the file has changed, where `server.watch_config` says so."""
        if now >= self._watch_at and self.current.settings.server.watch_config:
            self._watch_at = now + _WATCH_INTERVAL
            if self._watch.poll():
                self.start("watch")

    def stop(self) -> None:
        """Let no configuration be put in force any more."""
        self._stopped = True

    def _run(self) -> Steps:
        """Reload as long as that is asked for; once for all who asked before the file is read."""
        self._is_running = True
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            self.last = result = yield from self._reload()
            audited, _ = waiting[0]
            record(result, self.counters, audited)
            if not self._stopped:
                self.notifier.ready()
            for _, done in waiting:
                done(result)
        self._is_running = False

    def _reload(self) -> Generator[Command, Replies, ReloadResult]:
        if self._stopped:
            return failure(StartError(STOPPING), time.time())
        self.notifier.reloading()
        try:
            file = self._watch.read()
            settings = file.load(self.kinds, os.environ)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error, time.time())

        asked, content = self._asked(), {"content": file.content.decode()}
        replies = yield Command(asked, "prepare", content, PREPARE_TIMEOUT + 10.0)
        if self._stopped:
            failed: ReloadResult | None = failure(StartError(STOPPING), time.time())
        else:
            failed = _failure(replies, {child.pid for child in asked if child.preparing})
        if failed is not None:
            # Not waited for: after a stop, the admin process may end before the next step.
            self.fan_out.send_command(Command(self._asked(), "abort", {}, 0.0))
            return failed

        # A process that is started from now on is to serve as the others do.
        settings, needs_restart = applicable(self.current.settings, settings)
        self.current.file, self.current.settings = file, settings
        self.limiters.configure(settings.limits)
        prepared = {each["pid"] for each in replies if "ended" not in each}
        asked = self._asked()
        for child in asked:  # some were started meanwhile, with the old configuration
            child.outdated = child.outdated or child.pid not in prepared
        asked = [child for child in asked if child.pid in prepared]
        replies = yield Command(asked, "commit", {}, _COMMIT_TIMEOUT)
        failed_pids = {each["pid"] for each in replies if "error" in each}
        for child in asked:
            child.outdated = child.outdated or child.pid in failed_pids
        return ReloadResult(time.time(), needs_restart)

    def _asked(self) -> list[Child]:
        return [child for child in self.fan_out.children if child.phase != "draining"]


def _failure(replies: Replies, preparing: set[int]) -> ReloadResult | None:
    """Return why the first process that could not prepare could not, if there is one."""
    for each in replies:
        if result := each.get("result"):
            return msgspec.convert(result, ReloadResult)
        error = each.get("error")
        if "ended" in each and each["pid"] in preparing:
            error = "ended while it prepared the configuration"
        if error is not None:
            text = f"{each['name']} (pid {each['pid']}): {error}"
            return failure(StartError(text), time.time())
    return None


@dataclass
class PreparedReload:
    """Does the commands ``prepare``, ``commit`` and ``abort`` of the supervisor in one process.

    ``prepare`` opens what settings need; ``file`` is the one that was read first. ``send`` takes
    messages to the supervisor.
    """

    file: ConfigFile
    kinds: Kinds
    prepare: Callable[[Settings], Awaitable[Prepared]]
    send: Callable[[Message], object]
    _prepared: Prepared | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def execute(self, command: str, args: Message) -> ReloadResult | None:
        """Do a command after earlier ones; return the failure to prepare a configuration."""
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
            file = replace(self.file, content=args["content"].encode())
            self.send({"op": "preparing", "now": True})
            try:
                async with asyncio.timeout(PREPARE_TIMEOUT):
                    self._prepared = await prepare_file(file, self.kinds, self.prepare)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                return failure(error, time.time())
            finally:
                self.send({"op": "preparing", "now": False})
            return None
