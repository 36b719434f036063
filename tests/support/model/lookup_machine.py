"""A state machine over the real chain, guards and cache, with a clock that a test moves.

It makes histories: users come and go, backends fail and hang and lie, time passes, callers
ask and leave, operators purge. The callers' results are checked in `invariants`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.fakes.loops import SteppedLoop
from support.model.invariants import Invariants, encode
from support.model.recording_backends import Fault, Lookup, Record, RecordingBackend
from support.model.reference_chain import TICK, TIMEOUT, Chain
from tornado_idv.interfaces.backend import BackendOptions, BreakerOptions
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup import directory
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import ByCard, ByNickname, Query, User
from tornado_idv.registry import plugin_manager

T = TypeVar("T")
_BOTH = frozenset[type[Query]]({ByNickname, ByCard})
_CARDS = frozenset[type[Query]]({ByCard})
NICKNAMES = ("alice", "bob")
CARD_NUMBERS = ("1", "2")
QUERIES: Sequence[Query] = (*map(ByNickname, NICKNAMES), *map(ByCard, CARD_NUMBERS))


Kind = tuple[BackendOptions, frozenset[type[Query]]]
"""The options of one backend, and the queries that it serves."""


def kind(serves: frozenset[type[Query]], **options: Any) -> Kind:
    breaker = BreakerOptions(failures=2, open_for=5.0, open_max=20.0)
    return BackendOptions(name="a", kind="recording", breaker=breaker, **options), serves


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration and its initial users; ``chance`` is the cache's source of jitter."""

    kinds: tuple[Kind, ...]
    users: tuple[tuple[int, str, str], ...]
    limits: CacheLimits
    chance: float
    refreshes: bool


WHICH = st.integers(0, 2)
"""The index of a backend, modulo their number."""
INDEX = st.integers(0, 5)
"""The index of an item, modulo their number."""
ASKED = st.lists(st.sampled_from(QUERIES), min_size=1, max_size=3)
"""Queries of concurrent lookups."""
FAULTS = (None, None, None, Fault.UNAVAILABLE, Fault.UNAVAILABLE, Fault.BROKEN, *Fault)
"""The fault of a backend from now on, the likely ones first."""
KINDS = st.builds(
    kind,
    on_unavailable=st.sampled_from(["continue", "continue", "fail"]),
    serves=st.sampled_from([_BOTH, _BOTH, _BOTH, _CARDS]),
    cache_ttl=st.sampled_from([None, None, 20.0]),
    negative_ttl=st.sampled_from([None, None, 10.0]),
    max_concurrent=st.sampled_from([64, 64, 1]),
    timeout=st.sampled_from([1.0, 1.5]),
    match=st.sampled_from([None, None, None, "@a.*"]),
)
SETUPS = st.builds(
    Setup,
    kinds=st.lists(KINDS, min_size=2, max_size=3).map(tuple),
    users=st.lists(
        st.tuples(WHICH, st.sampled_from(NICKNAMES), st.sampled_from(CARD_NUMBERS)),
        min_size=2,
        max_size=6,
    ).map(tuple),
    limits=st.builds(
        CacheLimits,
        ttl=st.just(100.0),
        negative_ttl=st.just(20.0),
        max_entries=st.sampled_from([100, 100, 2]),
        max_negative_entries=st.sampled_from([100, 2]),
        stale_if_error=st.just(200.0),
        degraded_ttl=st.just(10.0),
    ),
    chance=st.sampled_from([0.0, 0.5, 1.0]),
    refreshes=st.booleans(),
)


class TickedLoop(SteppedLoop):
    """Its clock is precise enough to run a timer at the very time for which it is set."""

    now = 1000.0


class ObservedGuard(Guard):
    """Reports where a run of the chain begins, also one without a call."""

    record: Record

    def serves(self, query: Query) -> bool:
        self.record.begin(query)
        return super().serves(query)


class Lookups(RuleBasedStateMachine):
    """Generates histories, and checks every lookup against the invariants."""

    @initialize(setup=SETUPS)
    def start(self, setup: Setup) -> None:
        self.loop = TickedLoop()
        self.unhandled: list[str] = []
        self.loop.set_exception_handler(
            lambda _, context: self.unhandled.append(context["message"])
        )
        self.record = Record(self.loop.time)
        self.backends = [
            RecordingBackend(options.model_copy(update={"name": name}), self.record, serves)
            for name, (options, serves) in zip("abc", setup.kinds, strict=False)
        ]
        self.cache = AnswerCache(setup.limits, self.loop.time, lambda: setup.chance)
        ObservedGuard.record = self.record
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory, "Guard", partial(ObservedGuard, timer=self.loop.time))
            self.directory = directory.Directory(
                plugin_manager(entry_points=False, plugins=[self.record]),
                self.backends,
                self.cache,
                encode,
                accepts=lambda user: True,
                timeout=TIMEOUT,
            )
        self.chain = Chain(self.backends, setup.limits, self.record.calls)
        self.checker = Invariants(self.record, self.chain, setup.limits)
        self.callers: dict[asyncio.Task[None], Lookup] = {}
        self.refresh, self.refreshing = self.cache.on_late_hit, False
        self.cache.on_late_hit = lambda _: None
        self.versions = 0
        for which, nickname, card_number in setup.users:
            self._put_user(which, nickname, card_number)
        if setup.refreshes:
            self.start_or_stop_refreshing()

    @rule(
        which=WHICH,
        nickname=st.sampled_from(NICKNAMES),
        card_number=st.sampled_from((None, None, *CARD_NUMBERS)),
        notify=st.sampled_from([False, False, True]),
    )
    def change_user(
        self, which: int, nickname: str, card_number: str | None, *, notify: bool
    ) -> None:
        """Add a user to a backend, or remove it; with ``notify`` the backend reports the change."""
        self._put_user(which, nickname, card_number)
        if notify:
            self._changed(which)

    @rule(which=WHICH, fault=st.sampled_from(FAULTS))
    def fail_or_recover(self, which: int, fault: Fault | None) -> None:
        self._backend(which).fault = fault

    @rule(which=WHICH, late=st.booleans(), queries=ASKED)
    def hang(self, which: int, queries: Sequence[Query], *, late: bool) -> None:
        """Make a backend hang, and look up queries that have to wait for it."""
        self._backend(which).hangs = True
        self._backend(which).late = late
        self._look_up(queries)

    @precondition(lambda self: any(each.hangs for each in self.backends))
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        """Release a hanging backend, and repeat the lookups that waited."""
        hanging = [each for each in self.backends if each.hangs]
        waiting = {lookup.query: None for lookup in self.callers.values()}
        _one_of(hanging, which).release()
        self._settle()
        self._look_up(waiting)

    @precondition(lambda self: self.record.runs)
    @rule(asked=INDEX, edge=INDEX, after=st.sampled_from([-0.5, 0, 0.5]))
    def look_up_at_an_edge(self, asked: int, edge: int, after: float) -> None:
        """Repeat a query just before or after a limit of its last answer, such as its TTL."""
        query = _one_of(self.record.runs, asked)
        run = self.record.runs[query][-1]
        if run.ended is not None:
            self._pass_time_to(run.ended.time + _one_of(self.chain.edges(run), edge) + after)
        self._look_up([query])

    @rule(queries=ASKED, seconds=st.sampled_from([0.0, 0.0, 0.5, 6.0]))
    def look_up_after(self, seconds: float, queries: Sequence[Query]) -> None:
        self._pass_time_to(self.loop.now + seconds)
        self._look_up(queries)

    @precondition(lambda self: self.callers)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        task = _one_of(self.callers, which)
        self.callers[task].left = True
        task.cancel()
        self._settle()

    @rule(named=st.sampled_from([None, *"abc", *QUERIES]))
    def purge(self, named: str | Query | None) -> None:
        """Purge a backend, a user, or everything."""
        if named is None:
            self._change(lambda: self.cache.apply(Purge()))
            self.record.barrier(lambda _user, _backend: True)
        elif isinstance(named, str):
            self._change(lambda: self.cache.apply(Purge((named,))))
            self.record.barrier(lambda _user, backend: backend == named)
        else:
            self._change(lambda: self.cache.apply(Purge(queries=(named,))))
            self.record.barrier(lambda user, _backend: named in _names(user))

    @rule()
    def start_or_stop_refreshing(self) -> None:
        self.refreshing = not self.refreshing
        if self.refreshing:
            self.cache.on_late_hit = self.refresh
        else:
            self.cache.on_late_hit = lambda _: None
            self.directory.stop_refreshing()
        self._settle()

    @invariant()
    def no_error_is_unhandled(self) -> None:
        assert self.unhandled == []

    @invariant()
    def backends_get_only_the_query_of_their_lookup(self) -> None:
        assert self.record.strays == 0

    @invariant()
    def cache_sizes_are_bounded(self) -> None:
        limits = self.checker.limits
        assert len(self.cache._found) <= limits.max_entries  # noqa: SLF001 - the size of a table
        assert len(self.cache._negative) <= limits.max_negative_entries  # noqa: SLF001 - the size of a table

    @invariant()
    def ended_lookups_are_removed(self) -> None:
        assert len(self.directory._single_flight._calls) <= len(self.record.under_way)  # noqa: SLF001 - lookups that no caller waits for

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self._pass_time_to(self.loop.now + TIMEOUT + TICK)
            assert not self.callers, "a lookup never ends"
            if self.refreshing:
                self.start_or_stop_refreshing()
            assert asyncio.all_tasks(self.loop) == set()
            self.no_error_is_unhandled()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.settle()
            self.loop.close()

    def _backend(self, which: int) -> RecordingBackend:
        return self.backends[which % len(self.backends)]

    def _put_user(self, which: int, nickname: str, card_number: str | None) -> None:
        """Store a user with a new plan; no two users of one backend have the same card."""
        users = self._backend(which).users
        users.pop(nickname, None)
        for other in [each for each in users.values() if each.card_number == card_number]:
            del users[other.nickname]
        if card_number is not None:
            self.versions += 1
            users[nickname] = User(f"v{self.versions}", card_number, nickname)

    def _changed(self, which: int) -> None:
        """Report a data change, which may pre-empt the answers of later backends."""
        first = which % len(self.backends)
        names = {each.name for each in self.backends[first:]}
        self._change(self.backends[first].notify_changed)
        self.record.barrier(lambda _user, backend: backend in names)

    def _change(self, change: Callable[[], object]) -> None:
        """Purge from within the loop, as a service does."""
        self.loop.call_soon(change)
        self.loop.turn()

    def _look_up(self, queries: Iterable[Query]) -> None:
        """Look up queries concurrently, each for its own caller."""
        for query in queries:
            lookup = Lookup(query, self.record.now(), self.refreshing)
            self.callers[self.loop.create_task(self._call(lookup))] = lookup
        self._settle()

    async def _call(self, lookup: Lookup) -> None:
        lookup.begun = self.record.now()
        self.record.lookups.append(lookup)
        try:
            lookup.result = await self.directory.find(lookup.query)
        except BaseException as error:  # noqa: BLE001 checked like any other result
            lookup.result = error
        finally:
            lookup.ended = self.record.now()

    def _pass_time_to(self, target: float) -> None:
        """Advance the clock, in small steps while lookups are running; never backward."""
        while (self.callers or self.record.under_way) and self.loop.now < target:
            self.loop.now = min(self.loop.now + TICK, target)
            self._settle()
        self.loop.now = max(self.loop.now, target)
        self._settle()

    def _settle(self) -> None:
        """Run the loop until nothing is ready, and check the lookups that ended."""
        checked = sum(map(len, self.record.runs.values()))
        self.loop.settle()
        if sum(map(len, self.record.runs.values())) > checked:
            for runs in self.record.runs.values():
                self.checker.check_run(runs[-1])
        for task in [each for each in self.callers if each.done()]:
            lookup = self.callers.pop(task)
            if lookup.ended is not None:  # else it left before it began
                self.checker.check(lookup)


def _one_of(things: Iterable[T], index: int) -> T:
    """Return the item at an index, modulo their number."""
    found = list(things)
    return found[index % len(found)]


def _names(user: User) -> tuple[Query, Query]:
    return ByNickname(user.nickname), ByCard(user.card_number)
