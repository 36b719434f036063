"""No comparison with a shadow has a result that what both sources held contradicts."""

import asyncio
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pytest

from support.fakes.loops import VirtualLoop
from tornado_idv.errors import Broken, LookupFailed, Unavailable
from tornado_idv.features.shadow.part import compare
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shadow.state import ShadowState
from tornado_idv.features.shadow.view import RESULTS
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.kit.comparison import Comparison
from tornado_idv.lookup import directory
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import ByNickname, Query, User
from tornado_idv.registry import plugin_manager

LOOKUPS = int(os.environ.get("SHADOW_LOOKUPS", "3000"))
SEED = int(os.environ.get("SHADOW_SEED", "1"))
Mode = Literal["normal", "slow", "failing", "broken", "hanging", "emptied", "no canary", "problem"]
FAULTS: tuple[Mode, ...] = get_args(Mode)[1:]
CANARY = "idv-canary"
_FAILED: frozenset[Mode] = frozenset({"failing", "broken", "hanging"})
_UNTRUSTED: frozenset[Mode] = frozenset({"emptied", "no canary", "problem"})
AFTER_FAILURE = 1.0
"""Seconds for which a circuit breaker may stay open, with the next probe."""
_KEYS = [f"user{i}" for i in range(60)]
_OPTIONS = {
    "kind": "site",
    "timeout": 0.2,
    "canary": {"nickname": CANARY, "max_age": 0.0},
    "breaker": {"failures": 3, "open_for": 0.1, "open_max": 0.4},
}
_CACHE = CacheLimits(
    ttl=4, negative_ttl=3, refresh_ahead=1, failure_memo=0, stale_if_error=5, degraded_ttl=0.5
)


class Held(NamedTuple):
    """The answer that a source would give, and whether "not found" is to be believed."""

    user: User | None
    trusted: bool


@dataclass
class Site:
    """One source; a user changes at most once in some seconds, which no comparison takes."""

    name: str
    random: random.Random
    modes: list[tuple[float, Mode]] = field(default_factory=lambda: [(-inf, "normal")])
    users: dict[str, list[tuple[float, User | None]]] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        return self.modes[-1][1]

    def enter(self, mode: Mode) -> None:
        self.modes.append((_now(), mode))

    def put(self, key: str, user: User | None) -> None:
        """Change a user from now on."""
        self.users.setdefault(key, []).append((_now(), user))

    def held(self, key: str, at: float) -> Held:
        """Return what it would have answered at a time."""
        since, mode = self.modes[_index(self.modes, at)]
        if mode == "emptied":
            return Held(None, trusted=False)
        history = self.users[key]
        index = _index(history, since if mode == "problem" else at)
        return Held(history[index][1] if index >= 0 else None, trusted=mode != "problem")

    def times(self, key: str, start: float, end: float) -> Iterator[float]:
        """Yield when what it held may have changed."""
        for changes in (self.modes, self.users[key]):
            yield from (at for at, _ in changes if start < at <= end)

    def was(self, modes: frozenset[Mode], start: float, end: float) -> bool:
        """Return whether it was in one of these modes in that time."""
        first = max(_index(self.modes, start), 0)
        return any(mode in modes for at, mode in self.modes[first:] if at <= end)

    def changed(self, key: str, start: float, end: float) -> bool:
        return len({self.held(key, at) for at in (start, *self.times(key, start, end))}) > 1


class SiteBackend(Backend[BackendOptions]):
    """The backend of a site: it reads at one instant of a lookup, which takes a while."""

    def __init__(self, site: Site, options: BackendOptions) -> None:
        super().__init__(options)
        self.site = site

    @property
    def problem(self) -> str | None:
        return "stale" if self.site.mode == "problem" else None

    async def find(self, query: Query) -> User | None:
        site, choose = self.site, self.site.random
        longest = 0.12 if site.mode == "slow" else 0.02
        await asyncio.sleep(choose.uniform(0, longest / 2))
        mode, key = site.mode, query.text.removeprefix("@")
        if key == CANARY:
            found = None if mode in ("emptied", "no canary") else User("Free", "1", CANARY)
        else:
            found = site.held(key, _now()).user
        await asyncio.sleep(60 if mode == "hanging" else choose.uniform(0, longest / 2))
        if mode == "failing":
            raise Unavailable("down")
        if mode == "broken":
            raise Broken("nonsense")
        return found


@dataclass(frozen=True)
class Truth:
    """Says which results were right for a comparison between two times."""

    source: Site
    target: Site

    def allows(
        self, result: str, fields: Sequence[str], key: str, start: float, end: float
    ) -> bool:
        """Return whether a result agrees with what both held.

        A difference must have been there at one instant, and a match is the same user, or none,
        in both at some time.
        """
        both = (self.source, self.target)
        match result:
            case "source_failed":
                return self.source.was(_FAILED, start - AFTER_FAILURE, end)
            case "target_failed":
                return self.target.was(_FAILED, start - AFTER_FAILURE, end)
            case "unverified":
                untrusted = any(each.was(_UNTRUSTED, start, end) for each in both)
                return untrusted or self.source.changed(key, start, end)
            case "match":
                held = [{*self._held(each, key, start, end)} for each in both]
                return any(each.user or each.trusted for each in held[0] & held[1])
        instants = {start, *self.source.times(key, start, end), *self.target.times(key, start, end)}
        return any(
            kind == result and {*fields} == differing
            for kind, differing in (self._difference(key, at) for at in instants)
        )

    def _held(self, site: Site, key: str, start: float, end: float) -> Iterator[Held]:
        for at in (start, *site.times(key, start, end)):
            held = site.held(key, at)
            yield Held(held.user, trusted=True) if held.user else held

    def _difference(self, key: str, at: float) -> tuple[str, set[str]]:
        source, target = self.source.held(key, at), self.target.held(key, at)
        if source.user and target.user:
            names = ("plan", "card_number")
            pairs = (
                (each, getattr(source.user, each), getattr(target.user, each)) for each in names
            )
            fields = {name for name, one, other in pairs if one != other}
            return ("differs", fields) if fields else ("match", fields)
        if source.user and target.trusted:
            return "missing", set()
        return ("extra", set()) if target.user and source.trusted else ("match", set())


def _index(changes: Sequence[tuple[float, object]], at: float) -> int:
    return bisect_right(changes, at, key=lambda change: change[0]) - 1


def _now() -> float:
    return asyncio.get_running_loop().time()


class Recorder(ShadowState):
    """Keeps what a shadow would write, for each nickname the last."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), "new")
        self.ended: dict[str, tuple[Comparison, float]] = {}

    def start(self, _: object = None) -> None:
        pass

    def record(self, query: Query, comparison: Comparison, began: float) -> None:
        key = query.text.removeprefix("@")
        assert key not in self.ended, "two comparisons of one lookup"
        self.ended[key] = comparison, _now()


class World:
    """Both sites, a directory over the one and a shadow of the other."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.random = random.Random(SEED)
        self.old, self.new = Site("old", self.random), Site("new", self.random)
        self.truth = Truth(self.old, self.new)
        self.recorder, self.counters = Recorder(), Counters()
        self.wrong: list[str] = []
        self.left = LOOKUPS
        self.skipped = 0
        self.soon = {key: asyncio.Event() for key in _KEYS}
        self.versions = 0
        identifiers = Identifiers((ProfileSite.parse("https://a.example"),))
        manager = plugin_manager(entry_points=False)
        with pytest.MonkeyPatch.context() as patch:
            guard = partial(directory.Guard, timer=loop.time)
            patch.setattr(directory, "Guard", guard)
            self.directory = directory.Directory(
                manager,
                [SiteBackend(self.old, BackendOptions.model_validate({"name": "old", **_OPTIONS}))],
                AnswerCache(_CACHE, loop.time, self.random.random),
                lambda _: b"",
                accepts=identifiers.accepts,
            )
        shadow = {"sample": "100%", "hits": True, "rate": "1000000/s"}
        options = BackendOptions.model_validate({"name": "new", "shadow": shadow, **_OPTIONS})
        new = SiteBackend(self.new, options)
        counted = self.counters, self.recorder
        self.shadow = Shadow(options, lambda: new, identifiers, *counted, timer=loop.time)
        self.shadow.start()
        compare(self.directory, [self.shadow], manager)
        for key in _KEYS:
            user = self._version(key)
            for site in (self.old, self.new):
                site.put(key, user)

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._fail(site)) for site in (self.old, self.new)]
        tasks += [asyncio.create_task(self._edit(key)) for key in _KEYS]
        await asyncio.gather(*(self._look_up(key) for key in _KEYS))
        for task in tasks:
            task.cancel()
        await self.shadow.close()

    async def _fail(self, site: Site) -> None:
        while True:
            for mode, seconds in ((self.random.choice(FAULTS), 6), ("normal", 2)):
                await asyncio.sleep(self.random.uniform(0.5, seconds))
                for key in self.random.sample(_KEYS, 15):
                    self.soon[key].set()
                await asyncio.sleep(self.random.uniform(0, 0.06))
                site.enter(mode)

    async def _edit(self, key: str) -> None:
        """Change a user in one of the sites, or first in one of them and then in the other."""
        while True:
            await asyncio.sleep(self.random.uniform(3, 8))
            self.soon[key].set()
            await asyncio.sleep(self.random.uniform(0, 0.05))
            first, second = self.random.sample([self.old, self.new], 2)
            user = self.random.choice([None, self._version(key)])
            first.put(key, user)
            if self.random.random() < 0.7:
                await asyncio.sleep(self.random.choice([0.001, 0.01, 0.03, 0.5]))
                second.put(key, user)

    def _version(self, key: str) -> User:
        self.versions += 1
        plan = f"plan {self.versions if self.random.random() < 0.8 else 0}"
        return User(plan, str(self.versions), key)

    async def _look_up(self, key: str) -> None:
        """Look a user up again and again, and check each comparison."""
        loop, query = asyncio.get_running_loop(), ByNickname(key)
        while self.left > 0:
            self.left -= 1
            with suppress(TimeoutError):  # most lookups are about to meet a change
                await asyncio.wait_for(self.soon[key].wait(), self.random.choice([0.1, 1, 10]))
            self.soon[key].clear()
            await asyncio.sleep(self.random.uniform(0, 0.05))
            guards = (*self.directory.guards, self.shadow.guard)
            results = zip(("source_failed", "target_failed"), guards, strict=True)
            rejected = {
                each for each, guard in results if guard and guard.breaker.state != "closed"
            }
            started = loop.time()
            with suppress(LookupFailed):
                await self.directory.find(query)
            await asyncio.sleep(2.5)
            ended = self.recorder.ended.pop(key, None)
            if ended is None:
                self.skipped += 1
                continue
            comparison, end = ended
            result, fields = comparison.result, comparison.fields
            if result not in rejected and not self.truth.allows(result, fields, key, started, end):
                self.wrong.append(f"{key}: {result} {fields} from {started} to {end}")


def test_no_result_is_ever_wrong() -> None:
    random.seed(SEED)  # of circuit breakers
    loop = VirtualLoop()
    counted: Counter[str] = Counter()

    async def run() -> None:
        world = World()
        await world.run()
        assert not world.wrong, "\n".join(world.wrong)
        counted.update(world.counters.counts["shadow new"])
        assert world.skipped == counted["skipped"]

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert sum(counted[each] for each in RESULTS) == LOOKUPS
    assert all(counted[each] > LOOKUPS / 100 for each in RESULTS if each != "skipped"), counted
    assert counted["skipped"] < LOOKUPS / 20
