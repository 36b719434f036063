"""The oracle run: real services under load, while faults come and go at random.

Every answer is compared with the truth. A caller cannot tell a fresh answer from a stale
one: counted as stale is what differs from the truth of that moment, or comes while the
backend of that user cannot be asked. Exits with 1 if any answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import aiohttp
from rich.console import Console
from rich.table import Table

from support.faults.checker import Asked, Episode, Told, Verdict
from support.faults.client import SITE, Person
from support.faults.fault_catalogue import Trouble
from support.faults.harness import QUIET, Site, ground
from support.faults.reference import Source
from support.service import KEY

BAD = ("alice", "@a b", "@", "https://evil.example/m/alice", f"{SITE}/m/..", "12x", "٤٠", "")
_CALLERS = 8
_RECOVERY = 6.0
"""Seconds after which a fault that is lifted may have no traces: less than the time to live."""
_TOLD_LIES = 10
_SHORT = 30.0
"""Seconds of a run in which faults are held for moments only."""
SHOWN: tuple[Verdict, ...] = ("fresh", "stale", "404", "503", "wrong")
COLUMNS = ("fault", "requests", *SHOWN, "worst latency", "seconds to recover")


class Load:
    """Asks one service: known, absent and bad, some again and again."""

    def __init__(self, site: Site, session: aiohttp.ClientSession, random: Random) -> None:
        self._site, self._session, self._random = site, session, random
        self._strangers = 1000

    async def run(self, until: float, rate: float) -> None:
        """Some callers at once, each after the pause that makes the rate."""
        async with asyncio.TaskGroup() as callers:
            for _ in range(_CALLERS):
                callers.create_task(self._call(until, _CALLERS / rate))

    async def _call(self, until: float, pause: float) -> None:
        while time.monotonic() < until:
            await self.ask(*self._question())
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))

    def _question(self) -> tuple[str, Person | None]:
        random = self._random
        kind = random.random()
        if kind < 0.1:
            return random.choice(BAD), None
        source = random.choice(self._site.sources)
        if kind < 0.7:
            people = [*source.people.values()]
            person = random.choice(people[: random.choice([5, len(people)])])
        elif kind < 0.85:
            person = source.stranger(random.randrange(20))
        else:
            person = self.newcomer(source)
        return random.choice(person.spellings), person

    def newcomer(self, source: Source) -> Person:
        """Somebody absent who was never asked for, and thus is in no cache."""
        self._strangers += 1
        return source.stranger(self._strangers)

    async def ask(self, text: str, person: Person | None) -> Told:
        """One question, judged and counted."""
        episode = self._site.episode
        asked = Asked(text, person, time.monotonic())
        told = await self._send(text)
        verdict = self._site.judge.verdict(asked, told)
        row = episode.trouble.name if episode else QUIET
        self._site.tallies[row].add(verdict, told.ended - asked.begun)
        if verdict == "wrong":
            self._site.lies.append(f"{self._site.name}: {row}: {text} -> {told}")
        return told

    async def _send(self, text: str) -> Told:
        card = text[:1].isdigit() or not text
        path, member = ("card", "card_number") if card else ("url", "input")
        url = f"http://127.0.0.1:{self._site.port}/api/v1/identify/{path}"
        status, body, retry_after = 0, b"", None
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(url, json={member: text}) as response:
                body = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
        return Told(status, body, retry_after, time.monotonic())


class Mischief:
    """Lets the troubles of one service come and go, each before any comes twice."""

    def __init__(self, site: Site, load: Load, random: Random, hold: tuple[float, float]) -> None:
        self._site, self._load, self._random, self._hold = site, load, random, hold

    async def run(self, until: float) -> None:
        """Ends with the last trouble that began in time."""
        bag: list[Trouble] = []
        while time.monotonic() < until:
            for _ in range(3):
                await self._wait(0.4)
                self._random.choice(self._site.sources).edit(self._random)
            await self._wait(0.4)
            bag = bag or self._random.sample(self._site.troubles, len(self._site.troubles))
            await self._suffer(bag.pop())

    async def _suffer(self, trouble: Trouble) -> None:
        episode = Episode(trouble, time.monotonic())
        self._site.judge.episodes.append(episode)
        async with trouble.come():
            await self._wait(1)
        marked = trouble.source.mark(anew=trouble.harms_file)
        episode.lifted = time.monotonic()
        while not await self._is_over(trouble.source, marked):
            if time.monotonic() > episode.lifted + _RECOVERY:
                self._site.lies.append(f"{self._site.name}: {trouble.name}: never recovered")
                break
            await self._wait(0.02)
        episode.recovered = time.monotonic()
        tally = self._site.tallies[trouble.name]
        tally.recovery = max(tally.recovery, episode.recovered - episode.lifted)

    async def _is_over(self, source: Source, marked: Person) -> bool:
        """Whether the file of now is answered, and "not found" is said again."""
        known = await self._load.ask(marked.card, marked)
        stranger = self._load.newcomer(source)
        absent = await self._load.ask(stranger.spellings[0], stranger)
        return known.body == marked.body and absent.status == 404

    async def _wait(self, share: float) -> None:
        await asyncio.sleep(self._random.uniform(*self._hold) * share)


async def run(seconds: float, seed: int, rate: float = 40.0) -> list[Site]:
    """Loads all services for some seconds, each with so many questions a second."""
    random = Random(seed)
    hold = (1.0, 3.0) if seconds > _SHORT else (0.3, 0.6)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ground(Path(folder), seconds + 60) as sites,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            asyncio.TaskGroup() as group,
        ):
            until = time.monotonic() + seconds
            for site in sites:
                load = Load(site, session, Random(random.random()))
                mischief = Mischief(site, load, Random(random.random()), hold)
                group.create_task(load.run(until, rate))
                group.create_task(mischief.run(until))
    return sites


def rows(sites: Sequence[Site]) -> list[dict[str, str | int | float]]:
    """The table, one row for each fault of each service."""
    return [
        {
            "fault": f"{site.name}: {name}",
            "requests": tally.verdicts.total(),
            **{verdict: tally.verdicts[verdict] for verdict in SHOWN},
            "worst latency": round(tally.worst_latency, 3),
            "seconds to recover": round(tally.recovery, 2),
        }
        for site in sites
        for name, tally in sorted(site.tallies.items(), key=lambda item: item[0] != QUIET)
    ]


def show(sites: Sequence[Site]) -> None:
    """Prints the table for people, and the first lies."""
    table = Table(*COLUMNS, title="Every answer compared with the truth")
    for row in rows(sites):
        table.add_row(*(str(row[column]) for column in COLUMNS))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    bad = sum(tally.verdicts["422"] for site in sites for tally in site.tallies.values())
    console.print(f"{bad} of the requests were in no valid form, and were answered 422.")
    for lie in [lie for site in sites for lie in site.lies][:_TOLD_LIES]:
        console.print(f"wrong: {lie}", markup=False, style="red")


def main() -> int:
    """Runs as the arguments say; 1 if any answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=40, help="questions a second to each service")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    given = parser.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    Console(stderr=True).print(f"seed {seed}, {given.seconds:g} s", highlight=False)
    sites = asyncio.run(run(given.seconds, seed, given.rate))
    if given.json:
        sys.stdout.write(json.dumps({"seed": seed, "rows": rows(sites)}, indent=2) + "\n")
    else:
        show(sites)
    return 1 if any(site.lies for site in sites) else 0


if __name__ == "__main__":
    sys.exit(main())
