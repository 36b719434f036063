"""The supervisor: starts the processes, replaces those that end, and passes commands on.

It has no event loop and no thread, so that it can fork at any time. No public request passes
through it; it only keeps the listening sockets open.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.logs.handlers import AUDIT
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.limiters import Limiters
from tornado_idv.service.signals import KILLED_BY
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.channel import Message, decode_error
from tornado_idv.workers.child import Child, Slot, fork
from tornado_idv.workers.fan_out import Command, FanOut, Steps
from tornado_idv.workers.reload_all import Configuration, ReloadAll
from tornado_idv.workers.signals import SignalQueue

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
ADMIN = "admin"
"""The name of the process with the admin listener; all others are workers."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_ONLY_OURS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes, and workers ignore."""
_TICK = 1.0
"""Seconds between two steps, at most."""
_PAUSED = 1.0
"""Seconds by which a step is late if this process was stopped, and the others probably with it."""
_HEARTBEAT_TIMEOUT = 3.0
_START_TIMEOUT = 60.0
"""The same while a process opens backends, which may block its event loop."""
_FORK_PAUSE = 1.0
"""Seconds before another attempt where the system has no memory or no process left."""
_STOP_GRACE = 10.0
"""Seconds beyond the drain in which a process may close what it has opened."""
_COMMAND_TIMEOUT = 5.0
_REPORT_TIMEOUT = 0.5
"""Seconds; of a worker that does not reply, the last heartbeat is used."""


class Supervisor:
    """Runs a process in each slot until SIGTERM or SIGINT, then drains the workers.

    ``on_ready`` is called with the number of keys once all processes serve. ``release`` closes the
    public sockets in this process, so that none is open once the workers have closed theirs.
    A reload changes ``current``, and ``limiters``, which all share. ``counters`` take the counts of
    processes that have ended, as they last reported them, and of reloads. ``clock`` gives monotonic
    seconds.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        current: Configuration,
        kinds: Kinds,
        limiters: Limiters,
        notifier: Notifier,
        *,
        on_ready: Callable[[int], object],
        release: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        fork: Callable[..., Child] = fork,
    ) -> None:
        self.counters = Counters()
        self._slots = {slot.name: slot for slot in slots}
        self._current = current
        self._notifier = notifier
        self._on_all_ready = on_ready
        self._release = release
        self._clock = clock
        self._fork = fork
        self._signals = SignalQueue(_SIGNALS)
        self._fan_out = FanOut(clock)
        self._children = self._fan_out.children
        self.reloads = ReloadAll(self._fan_out, current, kinds, limiters, notifier, self.counters)
        self._restarts = 0
        self._announced = self._stopping = False
        self._hangup = False
        """Whether to reload; during the start, once it is over."""
        self._drained = True
        self._stepped = self._alive_at = clock()

    def run(self) -> bool:
        """Supervise until the stop; return whether every request was answered.

        A second signal ends everything at once, with 128 plus its number as the exit code.
        Raises `StartError` if no worker can start.
        """
        try:
            while self._children or not self._stopping:
                self._step()
            return self._drained
        finally:
            for child in self._children:
                child.end()
            self._signals.close()

    def _step(self) -> None:
        self._start_due()
        ready = self._wait()
        now = self._clock()
        for number in self._signals.read():
            self._on_signal(number)
        for child in ready:
            child.flush()
            self._receive(child, now)
        for child in tuple(self._children):
            if (code := child.reap()) is not None:
                self._on_exit(child, code, now)
        self._check_start()
        if self._hangup and self._announced:
            self._hangup = False
            self.reloads.start("signal")
        self._kill_overdue(now)
        self._fan_out.expire(now)
        self.reloads.poll(now)
        self._replace_outdated(now)
        if self._stopping and not self._workers():  # the admin listener responds until the end
            for child in self._children:
                self._drain(child, delay=False)
        if self._notifier.watchdog is not None and now >= self._alive_at:
            self._alive_at = now + self._notifier.watchdog
            self._notifier.alive()

    def _wait(self) -> list[Child]:
        """Return the processes that have sent something, or can be sent more."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        connected = {each.fileno(): each for each in self._children if not each.disconnected}
        for child in connected.values():
            poll.register(child, select.POLLIN | (select.POLLOUT if child.unsent else 0))
        now = self._clock()
        due = [now + _TICK, self._fan_out.next_deadline]
        due += [slot.start_at for slot in self._slots.values() if slot.child is None]
        if self._notifier.watchdog is not None:
            due.append(self._alive_at)
        events = poll.poll(max(0.0, min(due) - now) * 1000)
        return [connected[number] for number, _ in events if number in connected]

    def _start_due(self) -> None:
        now = self._clock()
        for slot in self._slots.values():
            if slot.child is None and slot.start_at <= now and not self._stopping:
                try:
                    with self._signals.blocked():
                        slot.child = self._fork(slot.name, partial(self._run_in_child, slot), now)
                except OSError as error:
                    slot.start_at = now + _FORK_PAUSE
                    _log.error("%s cannot be started: %s", slot.name, error.strerror)
                else:
                    self._children.append(slot.child)

    def _run_in_child(self, slot: Slot, sock: Any) -> int:
        """Leave the supervisor behind in a forked process, and become that of the slot."""
        # The admin listener responds until the end, also where all processes get SIGTERM.
        own = (*_ONLY_OURS, signal.SIGTERM) if slot.name == ADMIN else _ONLY_OURS
        self._signals.leave(own)
        for child in self._children:
            child.close()  # otherwise that process would not notice the end of the supervisor
        return slot.run(sock)

    def _receive(self, child: Child, now: float) -> None:
        for message in child.receive(now):
            match message["op"]:
                case "report":
                    child.report = message["report"]
                case "ready":
                    child.ready_at, child.key_count = now, message["keys"]
                    self._on_ready(child)
                case "failed":
                    self._slots[child.name].error = decode_error(message["error"])
                case "preparing":
                    child.preparing = message["now"]
                case "retire":
                    child.outdated = True
                case "reply":
                    self._fan_out.on_reply(child, message)
                case "ask":
                    self._fan_out.run(self._execute(child, message))
        if child.disconnected:
            child.kill_at = min(child.kill_at, now + _STOP_GRACE)

    def _execute(self, admin: Child, message: Message) -> Steps:
        """Execute a command of the admin process; reply once the workers have replied."""
        command, args, timeout = message["command"], message["args"], _COMMAND_TIMEOUT
        reply, workers = {"op": "reply", "id": message["id"]}, self._workers()
        if command == "reload":
            self.reloads.start("admin", lambda done: admin.send({**reply, "result": done}), **args)
            return
        if command == "report":
            # A worker that starts does not reply yet, and has counted nothing.
            workers = [each for each in workers if each.phase != "starting"]
            timeout = _REPORT_TIMEOUT
        elif command == "explain":
            workers = [each for each in workers if each.phase == "ready"][:1]
        replies = yield Command(workers, command, args, timeout)
        overview = self._overview() if command == "report" else None
        admin.send({**reply, "replies": replies, "overview": overview})

    def _on_ready(self, child: Child) -> None:
        slot = self._slots[child.name]
        if slot.child is not child:
            return  # it was replaced during its start
        if child.phase == "starting":
            child.phase = "ready"
        slot.error = None
        for other in self._children:  # one that it replaces has served until now
            if other.name == child.name and other is not child:
                self._drain(other, delay=False)

    def _check_start(self) -> None:
        """Announce the service once all of it serves; raise `StartError` if no worker can."""
        if self._announced or self._stopping:
            return
        slots = self._slots.values()
        error, *others = (slot.error for slot in slots if slot.name != ADMIN)
        if error is not None and None not in others:
            raise error
        if all(slot.child is not None and slot.child.phase == "ready" for slot in slots):
            self._announced = True
            self._notifier.ready()
            self._on_all_ready(max(each.key_count for each in self._children))

    def _replace_outdated(self, now: float) -> None:
        """Start another process in the place of each, and let it serve until that one does."""
        for slot in self._slots.values():
            child = slot.child
            if child is not None and child.outdated and not self._stopping:
                _log.info("%s is replaced", child)
                slot.child, slot.start_at = None, now
                if child.phase == "starting":
                    self._drain(child, delay=False)

    def _drain(self, child: Child, *, delay: bool) -> None:
        if child.phase != "draining":
            child.phase = "draining"
            child.send({"op": "drain", "delay": delay})
            limits = self._current.settings.server.drain
            seconds = limits.timeout + (limits.delay if delay else 0.0)
            child.kill_at = self._clock() + seconds + _STOP_GRACE

    def _on_exit(self, child: Child, code: int, now: float) -> None:
        self._receive(child, now)
        child.close()
        if child.report is not None:
            self.counters.merge(child.report["counters"])
        self._fan_out.on_exit(child)
        slot = self._slots[child.name]
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if child.phase == "draining":
            if self._stopping:
                self._drained = self._drained and code == 0
            _log.info("%s stopped: %s", child, reason)
        elif slot.child is not child:
            _log.error("%s ended: %s", child, reason)
        elif not self._stopping:
            pause = slot.on_exit(child, reason, now)
            self._restarts += 1
            error = f" ({slot.error})" if slot.error else ""
            _log.error("%s ended: %s%s; restart in %g s", child, reason, error, pause)

    def _kill_overdue(self, now: float) -> None:
        was_paused, self._stepped = now - self._stepped > _TICK + _PAUSED, now
        for child in self._children:
            if was_paused:
                child.heard = now
            is_opening = child.ready_at is None or child.preparing
            timeout = _START_TIMEOUT if is_opening else _HEARTBEAT_TIMEOUT
            if child.kill_at <= now:
                _log.warning("%s is killed: it did not stop in time", child)
            elif child.heard + timeout <= now and not child.disconnected:
                _log.error("%s is killed: no heartbeat for %g s", child, timeout)
            else:
                continue
            child.kill()
            child.heard = child.kill_at = now + _STOP_GRACE

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._hangup = True
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping:  # end without clean-up: a thread or a backend could hold that up
                _log.warning("second signal: exiting now, requests in flight are aborted")
                for child in self._children:
                    child.kill()
                _audit.info("stopped", extra={"drained": False})
                os._exit(KILLED_BY + number)
            self._stopping = True
            self.reloads.stop()
            self._notifier.stopping()
            if self._announced:
                _log.info("stopping: no new connections, finishing the requests in flight")
            else:
                _log.info("stopped during the start")
            self._release()
            for child in self._workers():
                self._drain(child, delay=True)

    def _workers(self) -> list[Child]:
        """Return all workers, in the order of their names."""
        order = [name for name in self._slots if name != ADMIN]
        return [child for name in order for child in self._children if child.name == name]

    def _overview(self) -> Message:
        """Return the state of all workers as last reported, for the admin process."""
        workers, now = self._workers(), self._clock()
        serving = {each.name for each in workers if each.phase == "ready"}
        return {
            "phase": "draining" if self._stopping else "ready" if serving else "starting",
            "pid": os.getpid(),
            "started_at": self.counters.started_at,
            "restarts": self._restarts,
            "missing": [name for name in self._slots if name not in {*serving, ADMIN}],
            "ended": self.counters.to_record(),
            "loaded_at": self.counters.last_reload_success,
            "last_reload": self.reloads.last,
            "workers": [each.overview(now) for each in workers],
        }
