"""No comparison with a shadow has a result that what both sources held contradicts."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from support.fakes.virtual_loop import VirtualLoop
from support.model.shadowed_sites import CANARY, FAULTS, Site, SiteBackend, Truth
from tornado_idv.errors import LookupFailed
from tornado_idv.features.shadow.part import compare
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shadow.state import ShadowState
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.lookup import directory
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.comparison import Comparison
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import ByNickname, Query, User
from tornado_idv.registry import plugin_manager

LOOKUPS = int(os.environ.get("SHADOW_LOOKUPS", "3000"))
SEED = int(os.environ.get("SHADOW_SEED", "1"))
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


class Ended(NamedTuple):
    comparison: Comparison
    at: float


class Recorder(ShadowState):
    """Keeps what a shadow would write, for each nickname the last."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), "new")
        self.ended: dict[str, Ended] = {}

    def start(self, _: object = None) -> None:
        pass

    def record(self, query: Query, comparison: Comparison, began: float) -> None:
        key = query.text.removeprefix("@")
        assert key not in self.ended, "two comparisons of one lookup"
        self.ended[key] = Ended(comparison, asyncio.get_running_loop().time())


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
        self.shadow = Shadow(
            options,
            lambda: [SiteBackend(self.new, options)],
            identifiers,
            self.counters,
            self.recorder,
            timer=loop.time,
        )
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

    def _guards(self) -> list[Guard]:
        return [each for each in (*self.directory.guards, self.shadow.guard) if each]

    async def _look_up(self, key: str) -> None:
        """Look a user up again and again, and check each comparison."""
        loop, query = asyncio.get_running_loop(), ByNickname(key)
        while self.left > 0:
            self.left -= 1
            with suppress(TimeoutError):  # most lookups are about to meet a change
                await asyncio.wait_for(self.soon[key].wait(), self.random.choice([0.1, 1, 10]))
            self.soon[key].clear()
            await asyncio.sleep(self.random.uniform(0, 0.05))
            guards = zip(("source_failed", "target_failed"), self._guards(), strict=True)
            rejected = {result for result, guard in guards if guard.breaker.state != "closed"}
            started = loop.time()
            with suppress(LookupFailed):
                await self.directory.find(query)
            await asyncio.sleep(2.5)
            ended = self.recorder.ended.pop(key, None)
            if ended is None:
                self.skipped += 1
                continue
            (result, fields), end = (ended.comparison.result, ended.comparison.fields), ended.at
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
    results = (
        "match",
        "missing",
        "extra",
        "differs",
        "unverified",
        "source_failed",
        "target_failed",
    )
    assert sum(counted[each] for each in (*results, "skipped")) == LOOKUPS
    assert all(counted[each] > LOOKUPS / 100 for each in results), counted
    assert counted["skipped"] < LOOKUPS / 20
