"""What really happens: backends that fail at will, and a record of all they were asked.

Nothing here is taken from the code under test but its contract: a chain is computed from
another by the task that it runs in, and its beginning by a hook of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tornado_idv.backend import Backend, BackendOptions
from tornado_idv.errors import Broken, Unavailable
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User


@dataclass(frozen=True, slots=True)
class At:
    """A point of a history: its place in the order of events, and the seconds of the clock."""

    moment: int
    time: float


class Failed(Enum):
    """How a backend did not answer."""

    UNAVAILABLE = auto()
    BROKEN = auto()


class Trouble(Enum):
    """What ails a backend."""

    UNAVAILABLE = auto()
    ITS_OWN_TIME_OUT = auto()
    BROKEN = auto()
    UNFORESEEN = auto()
    CANCELS_ITSELF = auto()
    TELLS_OF_ANOTHER = auto()
    GIVES_NO_USER = auto()
    GIVES_AN_UNFIT_USER = auto()


UNFIT = "unfit"
"""The plan of a user that no response can contain."""
_RAISED: Mapping[Trouble, type[BaseException]] = {
    Trouble.ITS_OWN_TIME_OUT: TimeoutError,
    Trouble.UNFORESEEN: KeyError,
    Trouble.CANCELS_ITSELF: asyncio.CancelledError,
}


@dataclass(slots=True)
class Call:
    """One asking of one backend; ``did`` says what it did, once ``ended``."""

    begun: At
    did: User | Failed | None = Failed.UNAVAILABLE
    ended: At | None = None


@dataclass(slots=True)
class Run:
    """One way down the chain, with the calls that it made by backend.

    ``beside`` are the runs for the same query that were under way when it began.
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
    told: Answer | BaseException | None = None
    ended: At | None = None
    left: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """A purge or a data change: what it ``names`` must not be served from before it."""

    at: At
    names: Callable[[User, str], bool]


class Record:
    """Everything that happened, in order; registered as a plugin, it sees runs begin."""

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

    @hookimpl
    def idv_identify(self, query: Query) -> None:
        beside = [run for run in self.under_way if run.query == query]
        run = Run(query, self.now(), beside)
        self.runs.setdefault(query, []).append(run)
        task = _this_task()
        self._runs_by_task[task] = run
        task.add_done_callback(self._run_ended)

    def _run_ended(self, task: asyncio.Task[object]) -> None:
        self._runs_by_task.pop(task).ended = self.now()

    def call(self, backend: str, query: Query) -> Call:
        """Notes that a backend is asked; a stray is asked for what its run is not about."""
        call = Call(self.now())
        run = self._runs_by_task[_this_task()]
        run.calls[backend] = call
        self.strays += query != run.query
        self.calls.setdefault(backend, []).append(call)
        return call

    def barrier(self, names: Callable[[User, str], bool]) -> None:
        self.barriers.append(Barrier(self.now(), names))


class Witness(Backend[BackendOptions]):
    """Tells the truth about ``users`` unless something ails it; hangs while it ``hangs``.

    A ``late`` one tells after the hanging what was true before.
    """

    def __init__(
        self, options: BackendOptions, record: Record, serves: frozenset[type[Query]]
    ) -> None:
        super().__init__(options)
        self._record = record
        self._serves = serves
        self.users: dict[str, User] = {}
        self.trouble: Trouble | None = None
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
        except Exception as error:
            unavailable = isinstance(error, (Unavailable, TimeoutError))
            call.did = Failed.UNAVAILABLE if unavailable else Failed.BROKEN
            raise
        except asyncio.CancelledError:
            call.did = Failed.UNAVAILABLE if _this_task().cancelling() else Failed.BROKEN
            raise
        finally:
            call.ended = self._record.now()
        return said

    async def _answer(self, query: Query) -> tuple[User | Failed | None, User | None]:
        """What it does, and what it says."""
        known = self._known(query)
        if self.hangs:
            await self._released.wait()
            if not self.late:
                known = self._known(query)
        if self.trouble is None:
            return known, known
        if self.trouble is Trouble.UNAVAILABLE:
            raise Unavailable("down")
        if self.trouble is Trouble.BROKEN:
            raise Broken("upside down")
        if self.trouble in _RAISED:
            raise _RAISED[self.trouble]
        return Failed.BROKEN, self._lie(query)

    def _known(self, query: Query) -> User | None:
        if isinstance(query, ByNickname):
            return self.users.get(query.nickname)
        for user in self.users.values():
            if user.card_number == query.card_number:
                return user
        return None

    def _lie(self, query: Query) -> User | None:
        if self.trouble is Trouble.GIVES_NO_USER:
            lie: object = {"nickname": "alice"}
            return lie  # type: ignore[return-value]
        asked = {"card_number": "77", "nickname": "alice"}
        if isinstance(query, ByCard):
            asked["card_number"] = query.card_number
        else:
            asked["nickname"] = query.nickname
        if self.trouble is Trouble.TELLS_OF_ANOTHER:
            return User("Free", "999", "somebody")
        return User(UNFIT, **asked)


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task
