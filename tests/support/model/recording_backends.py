"""What really happens: backends with injectable faults, and a record of all their calls.

This uses only the public contract of the code under test: runs of the chain are identified by
the task that they run in, and a hook sees them begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from tornado_idv.errors import Broken, Unavailable
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.model import Answer, ByNickname, Query, User


@dataclass(frozen=True, slots=True)
class At:
    """A point of a history: its place in the order of events, and the seconds of the clock."""

    moment: int
    time: float


class Failed(Enum):
    """How a backend did not answer."""

    UNAVAILABLE = auto()
    BROKEN = auto()


class Fault(Enum):
    """A fault of a backend. In tests/lookup/test_guard.py, every other fault ends like these."""

    UNAVAILABLE = auto()
    BROKEN = auto()
    RETURNS_ANOTHER_USER = auto()


@dataclass(slots=True)
class Call:
    """One call of one backend; ``did`` says what it did, once ``ended``."""

    begun: At
    did: User | Failed | None = Failed.UNAVAILABLE
    ended: At | None = None


@dataclass(slots=True)
class Run:
    """One run of the chain, with its calls by backend.

    ``beside`` are the runs for the same query that were running when it began.
    """

    query: Query
    begun: At
    beside: list[Run]
    calls: dict[str, Call] = field(default_factory=dict)
    ended: At | None = None


@dataclass(slots=True)
class Lookup:
    """One caller's query and result; ``left`` says that the caller did not wait."""

    query: Query
    begun: At
    refreshing: bool
    result: Answer | BaseException | None = None
    ended: At | None = None
    left: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """A purge or a data change: answers from before it that it ``names`` must not be served."""

    at: At
    names: Callable[[User, str], bool]


class Record:
    """Everything that happened, in order; it sees runs begin by `begin`, also as a plugin."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moment = 0
        self._runs_by_task: dict[asyncio.Task[object], Run] = {}
        self.runs: dict[Query, list[Run]] = {}
        self.lookups: list[Lookup] = []
        self.barriers: list[Barrier] = []
        self.calls: dict[str, list[Call]] = {}
        self.strays = 0

    def now(self) -> At:
        self._moment += 1
        return At(self._moment, self._clock())

    @property
    def under_way(self) -> list[Run]:
        return list(self._runs_by_task.values())

    def begin(self, query: Query) -> Run:
        """Return the run of this task, which begins with the first call."""
        task = _this_task()
        if task not in self._runs_by_task:
            beside = [run for run in self.under_way if run.query == query]
            self._runs_by_task[task] = run = Run(query, self.now(), beside)
            self.runs.setdefault(query, []).append(run)
            task.add_done_callback(self._run_ended)
        return self._runs_by_task[task]

    def _run_ended(self, task: asyncio.Task[object]) -> None:
        self._runs_by_task.pop(task).ended = self.now()

    def call(self, backend: str, query: Query) -> Call:
        """Record a call of a backend; a stray is a call with another query than its run."""
        call = Call(self.now())
        run = self.begin(query)
        run.calls[backend] = call
        self.strays += query != run.query
        self.calls.setdefault(backend, []).append(call)
        return call

    def barrier(self, names: Callable[[User, str], bool]) -> None:
        self.barriers.append(Barrier(self.now(), names))


class RecordingBackend(Backend[BackendOptions]):
    """Returns its ``users``, unless it has a ``fault``; waits while it ``hangs``.

    If ``late``, it returns after the wait what was stored before it.
    """

    def __init__(
        self, options: BackendOptions, record: Record, serves: frozenset[type[Query]]
    ) -> None:
        super().__init__(options)
        self._record = record
        self._serves = serves
        self.users: dict[str, User] = {}
        self.fault: Fault | None = None
        self.hangs = False
        self.late = False
        self._released = asyncio.Event()

    @property
    def serves(self) -> frozenset[type[Query]]:
        return self._serves

    def release(self) -> None:
        self.hangs = False
        self._released.set()
        self._released = asyncio.Event()

    async def find(self, query: Query) -> User | None:
        call = self._record.call(self.name, query)
        try:
            call.did, said = await self._answer(query)
        except Broken:
            call.did = Failed.BROKEN
            raise
        finally:
            call.ended = self._record.now()
        return said

    async def _answer(self, query: Query) -> tuple[User | Failed | None, User | None]:
        """Return what the backend did, and what it returns."""
        known = self._known(query)
        if self.hangs:
            await self._released.wait()
            if not self.late:
                known = self._known(query)
        if self.fault is None:
            return known, known
        if self.fault is Fault.UNAVAILABLE:
            raise Unavailable("down")
        if self.fault is Fault.BROKEN:
            raise Broken("upside down")
        return Failed.BROKEN, User("Free", "999", "another")

    def _known(self, query: Query) -> User | None:
        if isinstance(query, ByNickname):
            return self.users.get(query.nickname)
        for user in self.users.values():
            if user.card_number == query.card_number:
                return user
        return None


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task
