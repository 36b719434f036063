"""The supervisor: starts and restarts the processes, and holds the sockets.

It has no event loop and no thread, so it can fork at any time. It handles no requests.
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import convert

from tornado_idv.admin.report import ReloadResult
from tornado_idv.errors import StartError
from tornado_idv.logs.handlers import AUDIT
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.events import Events
from tornado_idv.service.reload import STOPPING, Audited, Configuration, failure, record
from tornado_idv.service.run import KILLED_BY
from tornado_idv.workers.channel import Message, State
from tornado_idv.workers.child import Child, SignalQueue, Slot, fork

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
MANAGER = "manager"
"""Name of the manager process. All other processes are workers."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_ONLY_OURS = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends these signals to all processes. All except the supervisor ignore them."""
_TICK = 1.0
"""Maximum time between two steps of the supervisor's loop, in seconds."""
_PAUSED = 1.0
"""If a step is this late, in seconds, the machine or all processes were probably paused."""
_HEARTBEAT_TIMEOUT = 3.0
_START_TIMEOUT = 60.0
"""Heartbeat timeout, in seconds, while a process opens backends and may block its event loop."""
_STOP_GRACE = 10.0
"""Seconds after the drain for a process to close its backends and files."""


class Supervisor:
    """Runs a process in each slot until SIGTERM or SIGINT, then drains the workers.

    When all processes serve, ``on_ready`` is called with the number of keys. At the stop,
    ``release`` closes the public sockets of the supervisor, because they must not stay open after
    the workers close theirs. A reload changes the configuration ``current``. ``counters`` counts
    reloads, and sums up the counts of ended processes. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        current: Configuration,
        events: Events,
        *,
        on_ready: Callable[[int], object],
        release: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        fork: Callable[..., Child] = fork,
    ) -> None:
        self.counters = Counters()
        self._slots = {slot.name: slot for slot in slots}
        self._current = current
        self._events = events
        self._on_all_ready = on_ready
        self._release = release
        self._clock = clock
        self._fork = fork
        self._signals = SignalQueue(_SIGNALS)
        self._children: list[Child] = []
        self._restarts = 0
        self._announced = self._stopping = False
        self._hangup_due = False
        """True from a SIGHUP until its reload begins."""
        self._last_reload: ReloadResult | None = None
        self._reloading: Audited | None = None
        """The cause of the running reload."""
        self._used: ReloadResult | None = None
        """The result of the running reload, set when the manager has asked for its use."""
        self._drained = True
        self._stepped = self._alive_at = clock()

    def run(self) -> bool:
        """Supervise until the stop. Return whether every request was answered.

        A second signal kills all processes immediately, and its number plus 128 is the exit code.
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
        self._wait()
        now = self._clock()
        for number in self._signals.read():
            self._on_signal(number)
        # The manager first. It reports the end of a reload after all workers have sent their
        # commits, so a step with this end also reads the commits. In the other order,
        # `_replace_outdated` could replace a worker with an unread commit.
        for child in sorted(self._children, key=lambda each: each.name != MANAGER):
            child.flush()
            self._receive(child, now)
            if (code := child.reap()) is not None:
                self._on_exit(child, code, now)
        self._check_start()
        self._kill_overdue(now)
        self._replace_outdated()
        if self._stopping and not self._workers():  # the manager serves until all workers end
            for child in self._children:
                self._drain(child, delay=False)
        if self._events.interval is not None and now >= self._alive_at:
            self._alive_at = now + self._events.interval
            self._events.send("alive")

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        for child in self._children:
            if not child.disconnected:
                poll.register(child, select.POLLIN | (select.POLLOUT if child.unsent else 0))
        now = self._clock()
        due = [now + _TICK]
        if not self._stopping:
            due += [slot.start_at for slot in self._slots.values() if slot.child is None]
        if self._events.interval is not None:
            due.append(self._alive_at)
        poll.poll(max(0.0, min(due) - now) * 1000)

    def _start_due(self) -> None:
        now = self._clock()
        for slot in self._slots.values():
            if slot.child is None and slot.start_at <= now and not self._stopping:
                try:
                    with self._signals.blocked():
                        slot.child = self._fork(slot.name, partial(self._run_in_child, slot), now)
                except OSError as error:
                    slot.start_at = now + _TICK  # memory or processes may be free then
                    _log.error("%s cannot be started: %s", slot.name, error.strerror)
                else:
                    slot.child.state.generation = self._current.generation
                    self._children.append(slot.child)

    def _run_in_child(self, slot: Slot, sock: socket.socket) -> int:
        """Detach a forked process from the supervisor, and run the function of the slot."""
        # The manager ignores SIGTERM: it serves until all workers end, even if a service manager
        # sends SIGTERM to all processes.
        self._signals.leave((*_ONLY_OURS, signal.SIGTERM) if slot.name == MANAGER else _ONLY_OURS)
        for child in self._children:
            child.sock.close()  # otherwise they would not notice the end of the supervisor
        return slot.run(sock)

    def _receive(self, child: Child, now: float) -> None:
        for message in child.receive(now):
            if message["op"] == "state":
                child.state = state = convert(message["state"], State)
                if state.error is not None:
                    self._slots[child.name].error = state.start_error
                if state.keys is not None and child.ready_at is None:
                    child.ready_at = now
                    self._on_ready(child)
            else:
                self._on_request(child, message)
        if child.disconnected:  # it sends no heartbeats any more, and must end soon
            child.kill_at = min(child.kill_at, now + _STOP_GRACE)

    def _on_request(self, manager: Child, message: Message) -> None:
        for each in self._workers():  # their messages may be older than the request
            self._receive(each, self._clock())
        match message["op"]:
            case "overview":
                manager.send("reply", **self._overview())
            case "reloading":
                self._hangup_due, self._reloading = False, message["audited"]
                self._events.send("reloading")
            case "use":
                # A worker that started to serve during the reload has not prepared it: the manager
                # must prepare it there, too.
                serving = {each.pid for each in self._workers() if each.phase == "ready"}
                if serving.difference(message["prepared"]):
                    manager.send("reply")
                    return
                result = self._current.use(message["content"])
                self._used = result
                manager.send("reply", result=result, generation=self._current.generation)
            case "reloaded":
                self._on_reloaded(convert(message["result"], ReloadResult))

    def _on_reloaded(self, result: ReloadResult) -> None:
        audited, self._reloading, self._used = self._reloading or {}, None, None
        self._last_reload = result
        if self._announced and not self._stopping:
            self._events.send("ready")
        record(result, self.counters, audited)

    def _on_manager_exit(self, manager: Child) -> None:
        """End the running reload when the manager process has ended.

        The supervisor may have a result already. If it has accepted the configuration, new
        processes use the configuration, and `_replace_outdated` replaces the old processes.
        """
        if self._reloading is not None:
            reason = STOPPING if self._stopping else f"{manager} ended during the reload"
            self._on_reloaded(self._used or failure(StartError(reason)))

    def _pass_hangup_on(self) -> None:
        """If a SIGHUP waits for its reload and the manager serves, order the reload."""
        manager = self._slots[MANAGER].child
        if self._announced and self._hangup_due and manager and manager.phase == "ready":
            manager.send("hangup")

    def _on_ready(self, child: Child) -> None:
        slot = self._slots[child.name]
        if slot.child is not child:
            return  # replaced during its start
        if child.phase == "starting":
            child.phase = "ready"
        slot.error = None
        if child.name == MANAGER:
            self._pass_hangup_on()
        for other in self._children:  # the replaced process has served until now
            if other.name == child.name and other is not child:
                self._drain(other, delay=False)

    def _check_start(self) -> None:
        """Announce the service when all processes serve; raise `StartError` if no worker starts."""
        if self._announced or self._stopping:
            return
        slots = self._slots.values()
        # A worker without an error may still start.
        error, *others = (slot.error for slot in slots if slot.name != MANAGER)
        if error is not None and None not in others:
            raise error
        if all(slot.child is not None and slot.child.phase == "ready" for slot in slots):
            self._announced = True
            self._events.send("ready")
            self._on_all_ready(max(each.state.keys or 0 for each in self._children))
            self._pass_hangup_on()

    def _replace_outdated(self) -> None:
        """Replace processes that are `State.retiring`, or have an old configuration.

        A process serves until its replacement serves. During a reload, no serving process is
        replaced for its configuration, because the reload may still change it.
        """
        for slot in self._slots.values():
            child = slot.child
            if child is None or self._stopping:
                continue
            is_unlike = child.state.generation != self._current.generation
            may_differ = self._reloading is not None and child.phase != "starting"
            if child.state.retiring or (is_unlike and not may_differ):
                _log.info("%s is replaced", child)
                slot.child = None
                if child.phase == "starting":  # no reason to wait for the successor
                    self._drain(child, delay=False)

    def _drain(self, child: Child, *, delay: bool) -> None:
        if child.phase != "draining":
            child.phase = "draining"
            child.send("drain", delay=delay)
            limits = self._current.settings.server.drain
            seconds = limits.timeout + (limits.delay if delay else 0.0)
            child.kill_at = self._clock() + seconds + _STOP_GRACE

    def _on_exit(self, child: Child, code: int, now: float) -> None:
        self._receive(child, now)
        child.sock.close()
        if child.state.report is not None:
            self.counters.merge(child.state.report["counters"])
        self._children.remove(child)
        if child.name == MANAGER:
            self._on_manager_exit(child)
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
        # After a pause of this process, the heartbeats of the others are old as well: they were
        # probably paused together.
        was_paused, self._stepped = now - self._stepped > _TICK + _PAUSED, now
        for child in self._children:
            if was_paused:
                child.heard = now
            is_opening = child.ready_at is None or child.state.preparing
            timeout = _START_TIMEOUT if is_opening else _HEARTBEAT_TIMEOUT
            if child.kill_at <= now:
                _log.warning("%s is killed: it did not stop in time", child)
            elif child.heard + timeout <= now and not child.disconnected:
                _log.error("%s is killed: no heartbeat for %g s", child, timeout)
            else:
                continue
            child.kill()
            # Give it time to end before it is killed again, and logged.
            child.heard = child.kill_at = now + _STOP_GRACE

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._hangup_due = True
            self._pass_hangup_on()
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping:  # exit without clean-up: a thread or a backend could block it
                _log.warning("second signal: exiting now, requests in flight are aborted")
                for child in self._children:
                    child.kill()
                _audit.info("stopped", extra={"drained": False})
                os._exit(KILLED_BY + number)
            self._stopping = True
            if (manager := self._slots[MANAGER].child) is not None:
                manager.send("stopping")
            self._events.send("stopping")
            if self._announced:
                _log.info("stopping: no new connections, finishing the requests in flight")
            else:
                _log.info("stopped during the start")
            self._release()
            for child in self._workers():
                self._drain(child, delay=True)

    def _workers(self) -> list[Child]:
        order = [name for name in self._slots if name != MANAGER]
        return [child for name in order for child in self._children if child.name == name]

    def _overview(self) -> Message:
        workers, now = self._workers(), self._clock()
        serving = {each.name for each in workers if each.phase == "ready"}
        return {
            "phase": "draining" if self._stopping else "ready" if serving else "starting",
            "pid": os.getpid(),
            "started_at": self.counters.started_at,
            "restarts": self._restarts,
            "missing": [name for name in self._slots if name not in {*serving, MANAGER}],
            "ended": self.counters.to_record(),
            "loaded_at": self.counters.last_reload_success,
            "last_reload": self._last_reload,
            "workers": [each.overview(now) for each in workers],
        }
