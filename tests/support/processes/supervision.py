"""A supervisor whose processes, signals to them and time are simulated."""

import math
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.processes.service import load_configuration
from tornado_idv.admin.report import ReloadResult
from tornado_idv.config.settings import DrainSettings
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.events import Event, Events
from tornado_idv.service.reload import Configuration
from tornado_idv.workers.channel import Message, State, encode
from tornado_idv.workers.child import Child, Slot
from tornado_idv.workers.supervisor import MANAGER, Supervisor

CONFIG = """\
profile_sites: [https://profiles.example]
server: {workers: 2, watch_config: false}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""


def configuration(folder: Path, text: str, *plugins: object) -> Configuration:
    """Write a file, and return the configuration of a process that was started with it."""
    path = folder / "config.yaml"
    path.write_text(text)
    return load_configuration(path, *plugins)


_MAX_STEPS = 100
"""Steps without time between them: a supervisor that does more would use up a core."""


class FakeProcess:
    """A process that serves at once, sends heartbeats, and stops when it is asked to.

    ``ignored`` are the operations that it does not respond to. It begins with ``state``.
    """

    def __init__(
        self, name: str, pid: int, sock: socket.socket, clock: Callable[[], float], state: State
    ) -> None:
        self.name = name
        self.pid = pid
        self.started = clock()
        self.received: list[Message] = []
        self.signals: list[int] = []
        self.ignored: set[str] = set()
        self.is_hung = False
        self.is_unkillable = False
        self.is_unprepared = False
        self.code: int | None = None
        self.before_reap: Callable[[], object] = lambda: None
        self.counters = Counters()
        self._clock = clock
        self._socket = sock
        self._state = msgspec.structs.replace(state)
        self._rest = b""
        self._beat_at = clock()

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    @property
    def operations(self) -> list[str]:
        return [each["op"] for each in self.received]

    def serve(self, keys: int = 1) -> None:
        self.update(keys=keys)

    def update(self, **changes: Any) -> None:
        """Report a change of its state."""
        self._state = msgspec.structs.replace(self._state, **changes)
        self.send("state", state=self._state)
        self._beat_at = self._clock()

    def send(self, op: str, **more: Any) -> None:
        self._socket.sendall(encode({"op": op, **more}))

    def report(self) -> None:
        self.update(report={"process": {}, "counters": self.counters.to_record(), "requests": 0})

    def disconnect(self) -> None:
        self._socket.close()

    def exit(self, code: int = 0) -> None:
        self._socket.close()
        self.code = code
        signal.raise_signal(signal.SIGCHLD)

    def run(self) -> None:
        if self.is_hung or self.has_ended or self._socket.fileno() < 0:
            return
        self._socket.settimeout(0)
        data = b""
        with suppress(BlockingIOError):
            while received := self._socket.recv(100_000):
                data += received
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.received.append(msgspec.json.decode(line))
            if self.operations[-1] == "drain" and "drain" not in self.ignored:
                self.exit()
        if not self.has_ended and self._clock() - self._beat_at >= 1.0:
            self.report()


def never_serve(_: FakeProcess) -> None:
    """Prepare a process that has not reported yet."""


class FakeChild(Child):
    """What the supervisor has of a simulated process."""

    def __init__(self, process: FakeProcess, sock: socket.socket, now: float) -> None:
        super().__init__(process.name, process.pid, sock, now)
        self._process = process

    def kill(self) -> None:
        self._process.signals.append(signal.SIGKILL)
        if not (self._process.has_ended or self._process.is_unkillable):
            self._process.exit(-signal.SIGKILL)

    def reap(self) -> int | None:
        self._process.before_reap()
        return self._process.code

    def end(self) -> None:
        self.kill()
        self._process.disconnect()
        self.sock.close()


class RecordingEvents(Events):
    def __init__(self, interval: float | None) -> None:
        super().__init__()
        self.interval = interval
        self.sent: list[Event] = []

    def send(self, event: Event) -> None:
        self.sent.append(event)


class Simulation:
    """Two workers, the manager, and their supervisor, in simulated time.

    ``prepare`` is called with each process that is started; by default it serves.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, *, interval: float | None = None
    ) -> None:
        self.now = 1000.0
        self.processes: list[FakeProcess] = []
        self.prepare: Callable[[FakeProcess], object] = FakeProcess.serve
        self.fork_error: OSError | None = None
        self.announced: list[int] = []
        self.released: list[str] = []
        self.events = RecordingEvents(interval)
        self.current = configuration(folder, CONFIG)
        self._steps = 0
        self._pause = 0.0
        patch.setattr(select, "poll", lambda: _Poll(self))
        self.supervisor = Supervisor(
            [Slot(each, lambda _: 0) for each in ("worker 1", "worker 2", MANAGER)],
            self.current,
            self.events,
            on_ready=self.announced.append,
            release=partial(self.released.append, "sockets"),
            clock=self.clock,
            fork=self._fork,
        )

    @property
    def counters(self) -> Counters:
        return self.supervisor.counters

    def set_drain(self, delay: float, timeout: float) -> None:
        """Have other settings for draining in force."""
        drain = DrainSettings(delay=delay, timeout=timeout)
        server = self.current.settings.server.model_copy(update={"drain": drain})
        self.current.settings = self.current.settings.model_copy(update={"server": server})

    def clock(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self._end = self.now + seconds
        while self.now < self._end:
            self.supervisor._step()  # noqa: SLF001 - the supervisor, step by step
        for _ in range(3):  # for what the last step caused, such as the end of a process
            self.supervisor._step()  # noqa: SLF001 - the supervisor, step by step

    def pause(self, seconds: float) -> None:
        """Let time pass in which neither the supervisor nor a process runs, as in a suspend."""
        processes, self.processes = self.processes, []
        self._pause = seconds
        self.advance(seconds)
        self.processes += processes

    def run(self) -> bool:
        """Let the supervisor run to its end."""
        self._end = math.inf
        return self.supervisor.run()

    def close(self) -> None:
        for each in self.supervisor._children:  # noqa: SLF001 - the supervisor, step by step
            each.end()
        self.supervisor._signals.close()  # noqa: SLF001 - the supervisor, step by step

    def of(self, name: str) -> list[FakeProcess]:
        """The processes that have had this name."""
        return [each for each in self.processes if each.name == name]

    def worker(self, number: int = 1) -> FakeProcess:
        """The latest process of a worker."""
        return self.of(f"worker {number}")[-1]

    @property
    def manager(self) -> FakeProcess:
        return self.of(MANAGER)[-1]

    def ask(self, op: str, **args: Any) -> Message:
        """Return the reply to a message of the manager."""
        self.manager.send(op, **args)
        self.advance(0.0001)
        (reply,) = [each for each in self.manager.received if each["op"] == "reply"]
        self.manager.received.remove(reply)
        return reply

    def overview(self) -> Any:
        return self.ask("overview")

    def use(self, text: str) -> Message:
        """Have the manager begin a reload with this content; return the reply."""
        self.manager.send("reloading", audited={"trigger": "admin"})
        prepared = [each.pid for each in self.processes if not each.is_unprepared]
        return self.ask("use", content=text, prepared=prepared)

    def end_reload(self, result: ReloadResult) -> None:
        self.manager.send("reloaded", result=result)
        self.advance(0.1)

    def wait(self, seconds: float) -> None:
        """Let processes run, and time pass; less if one of them does something."""
        self._steps = 0 if seconds > 0 else self._steps + 1
        assert self._steps < _MAX_STEPS, "the supervisor does not wait"
        self.now, self._pause = max(min(self.now + seconds, self._end), self.now + self._pause), 0.0

    def _fork(self, name: str, _: object, now: float) -> Child:
        if self.fork_error is not None:
            raise self.fork_error
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # a long message does not fit
        process = FakeProcess(
            name,
            101 + len(self.processes),
            theirs,
            self.clock,
            State(generation=self.current.generation),
        )
        self.processes.append(process)
        self.prepare(process)
        return FakeChild(process, ours, now)


class _Poll:
    """`select.poll`, in simulated time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._poll = _REAL_POLL()
        self.register = self._poll.register

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        events = self._run()
        self._simulation.wait(0.0 if events else timeout / 1000)
        return events or self._run()

    def _run(self) -> list[tuple[int, int]]:
        for each in self._simulation.processes:
            each.run()
        return self._poll.poll(0)


_REAL_POLL = select.poll
