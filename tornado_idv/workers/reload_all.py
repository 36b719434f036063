"""Reload of the configuration in all processes of a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tornado_idv.admin.reload import FAILED, ReloadResult
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.needs_restart import needs_restart
from tornado_idv.service.reload import (
    PREPARE_TIMEOUT,
    STOPPING,
    Watch,
    explain_failure,
    record,
    signature_of,
)
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.child import Child
from tornado_idv.workers.fan_out import FanOut, Replies

_PREPARE_TIMEOUT = PREPARE_TIMEOUT + 10.0
_COMMIT_TIMEOUT = 5.0
_WATCH_INTERVAL = 1.0


@dataclass
class Configuration:
    """Configuration with which new processes are started."""

    file: ConfigFile
    settings: Settings


class ReloadAll:
    """Has every process prepare a configuration, and put it in force if all of them can.

    A process that has not prepared it by then is given to ``replace``, which starts another one.
    ``load`` returns the settings in a file, or raises an `IdvError`; ``use`` is called with the
    settings that new processes are started with.
    """

    def __init__(
        self,
        current: Configuration,
        load: Callable[[ConfigFile], Settings],
        use: Callable[[Settings], object],
        notifier: Notifier,
        counters: Counters,
    ) -> None:
        self.last: ReloadResult | None = None
        self._current = current
        self._started = current.settings
        self._load = load
        self._use = use
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
        if self._watch.poll(signature_of(self._watch.path)):
            self.start("watch")

    def stop(self) -> None:
        """Let no configuration be put in force any more."""
        self._stopped = True

    def _begin(self) -> None:
        (self._audited, _), *_ = self._waiting
        self._running, self._waiting = [done for _, done in self._waiting], []
        if self._stopped:
            self._fail(FAILED, (STOPPING,))
            return
        self._notifier.reloading()
        self._watch.read = signature_of(self._watch.path)
        try:
            file = ConfigFile.read(self._watch.path)
            settings = self._load(file)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._fail(*explain_failure(error))
            return

        asked = [child for child in self._processes() if child.phase != "draining"]

        def on_prepared(replies: Replies) -> None:
            preparing = {child.pid for child in asked if child.preparing}
            for each in replies:
                if "ended" in each and each["pid"] in preparing:
                    each["error"] = "ended while it prepared the configuration"
            self._on_prepared(Configuration(file, settings), replies)

        content = {"content": file.content.decode()}
        self._send("prepare", content, _PREPARE_TIMEOUT, on_prepared)

    def _on_prepared(self, new: Configuration, replies: Replies) -> None:
        failed = [each for each in replies if each.get("result") or "error" in each]
        if failed or self._stopped:
            self._send("abort", {}, _COMMIT_TIMEOUT, lambda _: None)
            reason: tuple[str, tuple[str, ...]] = FAILED, (STOPPING,)
            for each in failed[:1]:
                if result := each.get("result"):
                    reason = result["code"], tuple(result["problems"])
                else:
                    reason = FAILED, (f"{each['name']} (pid {each['pid']}): {each['error']}",)
            self._fail(*reason)
            return
        self._current.file, self._current.settings = new.file, new.settings
        self._use(new.settings)
        prepared = {each["pid"] for each in replies if "ended" not in each}
        for child in self._processes():
            if child.pid not in prepared and child.phase != "draining":
                self._replace(child)  # it was started meanwhile, with the old configuration
        restart = needs_restart(self._started, new.settings)

        def on_committed(replies: Replies) -> None:
            failed = {each["pid"] for each in replies if "error" in each}
            for child in self._processes():
                if child.pid in failed:
                    self._replace(child)
            self._finish(ReloadResult(time.time(), restart))

        self._send("commit", {}, _COMMIT_TIMEOUT, on_committed)

    def _send(
        self, command: str, args: dict[str, Any], timeout: float, done: Callable[[Replies], object]
    ) -> None:
        recipients = [child for child in self._processes() if child.phase != "draining"]
        self._fan_out.send(recipients, command, args, timeout, done)

    def _fail(self, code: str, problems: tuple[str, ...]) -> None:
        self._finish(ReloadResult(time.time(), code=code, problems=problems))

    def _finish(self, result: ReloadResult) -> None:
        self.last = result
        record(result, self._counters, self._audited)
        if not self._stopped:
            self._notifier.ready()
        done, self._running = self._running or [], None
        for each in done:
            each(result)
        if self._waiting:
            self._begin()
