"""The faults of an oracle run, one after the other, and the limits of their effects."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from soak.checker import Episode
from soak.fault_catalogue import Scenario
from soak.harness import Change, Site
from soak.load import Load
from soak.people import Person
from soak.reference import Source

_RECOVERY = 8.0
"""Maximum time from the end of a fault to the end of its effects, in seconds: less than the TTL.

If the backend is another instance, this time includes a ``Retry-After`` of 2 s, and one of 1 s from
lookups that wait for the probe of its breaker. If the probe times out on a busy machine, both occur
twice.
"""
_PROPAGATION = 1.0
"""Maximum time until each process has noticed an edit, a purge or a revocation, in seconds."""


class FaultInjector:
    """Injects the faults of one service in random order. Each occurs once before any is repeated.

    After each fault, all processes must notice changes within a time limit. Where a fault permits
    it, they must also notice changes during the fault.
    """

    def __init__(self, site: Site, load: Load, random: Random, hold: tuple[float, float]) -> None:
        self._site, self._load, self._random, self._hold = site, load, random, hold

    async def run(self, until: float) -> None:
        """Inject faults until the time ``until``. Complete the last fault."""
        bag: list[Scenario] = []
        while time.monotonic() < until:
            for _ in range(3):
                await self._wait(0.4)
                source = self._random.choice(self._site.sources)
                await asyncio.to_thread(source.edit, self._random)
            await self._wait(0.4)
            bag = bag or self._random.sample(self._site.scenarios, len(self._site.scenarios))
            await self._inject(bag.pop())

    async def run_each(self) -> None:
        """Inject each fault once, in order."""
        *others, last = self._site.scenarios
        for scenario in (*others, replace(last, clean_up=None)):
            await self._inject(scenario)

    async def _inject(self, scenario: Scenario) -> None:
        episode = Episode(scenario, time.monotonic())
        self._site.checker.episodes.append(episode)
        affected = self._site.ports if scenario.affects is None else scenario.affects
        others = [port for port in self._site.ports if port not in affected]
        async with scenario.inject():
            episode.injected = time.monotonic()
            await self._wait(1)
            followed = [each for each in self._site.changes if each.name in scenario.followed]
            meanwhile = others if scenario.followers is None else scenario.followers
            await self._change(scenario.name, " meanwhile", followed, meanwhile, scenario.lag)
            episode.lifted = time.monotonic()
        repaired = time.monotonic()
        for change in self._site.changes:
            await change.make()
        marked = await asyncio.to_thread(scenario.source.mark, recreate=scenario.harms_file)
        while not await self._is_over(scenario.source, marked):
            if time.monotonic() > repaired + _RECOVERY:
                self._site.violations.append(f"{self._site.name}: {scenario.name}: never recovered")
                break
            await self._wait(0.1)
        episode.recovered = time.monotonic()
        tally = self._site.tallies[scenario.name]
        tally.recovery = max(tally.recovery, episode.recovered - repaired)
        await self._change(scenario.name, "", self._site.changes, self._site.ports)
        if scenario.clean_up is not None:
            await asyncio.to_thread(scenario.clean_up)

    async def _change(
        self,
        row: str,
        when: str,
        changes: Sequence[Change],
        ports: Collection[int],
        lag: float = 0.0,
    ) -> None:
        """Make changes one by one. Measure the time until the processes at ``ports`` notice each.

        ``lag`` is the delay of a replica of the source, in seconds.
        """
        for change in changes:
            await change.make()
            made = time.monotonic()
            while not all([await change.is_seen(port) for port in ports]):
                if time.monotonic() > made + _RECOVERY:
                    break
                await asyncio.sleep(0.04)
            delays = self._site.tallies[row].delays
            delay = time.monotonic() - made
            name = change.name + when
            delays[name] = max(delays.get(name, 0.0), delay)
            if delay > _PROPAGATION + lag:
                self._site.violations.append(
                    f"{self._site.name}: {row}: {name} seen after {delay:.2f} s"
                )

    async def _is_over(self, source: Source, marked: Person) -> bool:
        """Return whether all processes serve the current users, and answer "not found" again."""
        for port in self._site.ports:
            known = await self._load.ask(marked.card, marked, port)
            stranger = self._load.newcomer(source)
            absent = await self._load.ask(stranger.spellings[0], stranger, port)
            if known.body != marked.body or absent.status != 404:
                return False
            if not all([await each.is_seen(port) for each in self._site.changes]):
                return False
        return True

    async def _wait(self, share: float) -> None:
        await asyncio.sleep(self._random.uniform(*self._hold) * share)
