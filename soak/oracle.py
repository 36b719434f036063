"""The oracle run: real services under load, with random faults.

Each response is compared with the reference. Responses do not say whether they are stale. So a
response counts as stale if it differs from the current reference, or if the backend of the user is
unavailable. The exit code is 1 after a wrong response.
"""

import argparse
import asyncio
import json
import math
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import aiohttp
from rich.console import Console
from rich.table import Table

from soak.checker import Episode, Outcome, Request, Response
from soak.directories import running_directory_sites
from soak.failover_postgres import running_postgres_failover
from soak.failover_redis import running_redis_failover
from soak.fault_catalogue import Scenario
from soak.harness import QUIET, Change, Site, running_sites
from soak.ldap_users import running_ldap_sites
from soak.people import SITE, Person
from soak.postgres import running_postgres_sites
from soak.redis_users import running_redis_sites
from soak.reference import Source
from soak.replicas import running_replicas
from soak.sqlite_tables import running_sqlite_sites
from soak.two_servers import (
    running_two_ldap_servers,
    running_two_postgres_servers,
    running_two_upstreams,
)
from support.databases.ldap_server import SEARCH_PATH
from support.databases.postgres_server import binaries
from support.processes.proxies import not_installed
from support.processes.service import KEY

BAD = ("alice", "@a b", "@", "https://evil.example/m/alice", f"{SITE}/m/..", "12x", "٤٠", "")
_CLIENTS = 8
_BATCHES = 0.2
"""The share of batches among the requests."""
_BATCH_SIZES = (1, 2, 5, 20, 50)
_STATUSES = {"ok": 200, "not_found": 404, "invalid_format": 422, "backend_unavailable": 503}
_RECOVERY = 8.0
"""Maximum time from the end of a fault to the end of its effects, in seconds: less than the TTL.

If the backend is another instance, this time includes a ``Retry-After`` of 2 s, and one of 1 s from
lookups that wait for the probe of its breaker. If the probe times out on a busy machine, both occur
twice.
"""
_PROPAGATION = 1.0
"""Maximum time until each process has noticed an edit, a purge or a revocation, in seconds."""
_MAX_SHOWN = 10
_SHORT = 30.0
"""Maximum length of a run with short faults, in seconds."""
_SHORT_HOLD = (0.3, 0.6)
_SECRET = re.compile(rf"{KEY}|[@/][a-z]-(?:no)?\d|\b\d{{2,3}}[17]0000\d{{4}}\b")
SHOWN: tuple[Outcome, ...] = ("fresh", "stale", "404", "503", "wrong")
COLUMNS = ("fault", "requests", *SHOWN, "worst latency", "seconds to recover", "to follow")


class Load:
    """Sends requests to one service: for existing users, absent users and invalid values."""

    def __init__(self, site: Site, session: aiohttp.ClientSession, random: Random) -> None:
        self._site, self._session, self._random = site, session, random
        self._strangers = 1000

    async def run(self, until: float, rate: float) -> None:
        """Run concurrent clients. Their pauses result in ``rate`` requests per second."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(self._call(until, _CLIENTS / rate))

    async def _call(self, until: float, pause: float) -> None:
        while time.monotonic() < until:
            if self._random.random() < _BATCHES:
                await self._ask_many()
            else:
                await self.ask(*self._random_request())
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))

    def _random_request(self) -> tuple[str, Person | None]:
        random = self._random
        kind = random.random()
        if kind < 0.1:
            return random.choice(BAD), None
        source = random.choice(self._site.sources)
        if kind < 0.25:
            person = random.choice([*source.recent])
        elif kind < 0.7:
            people = [*source.people.values()]
            person = random.choice(people[: random.choice([5, len(people)])])
        elif kind < 0.85:
            person = source.stranger(random.randrange(20))
        else:
            person = self.newcomer(source)
        return random.choice(person.spellings), person

    def newcomer(self, source: Source) -> Person:
        """Return an absent user who was never requested, and so is not in a cache."""
        self._strangers += 1
        return source.stranger(self._strangers)

    async def ask(self, text: str, person: Person | None, port: int | None = None) -> Response:
        """Send a request to ``port``, or to a random process. Check and count the response."""
        episode = self._site.episode
        port = port or self._random.choice(self._site.ports)
        request = Request(text, person, time.monotonic(), port)
        path = "card" if _is_card(text) else "url"
        response = await self._send(path, _item(text), port)
        self._judge(request, response, episode)
        return response

    async def _ask_many(self) -> None:
        """Send a batch of lookups. Check and count each result like the response of a lookup."""
        episode, port = self._site.episode, self._random.choice(self._site.ports)
        asked = [self._random_request() for _ in range(self._random.choice(_BATCH_SIZES))]
        requests = [Request(text, person, time.monotonic(), port) for text, person in asked]
        items = [_item(text) for text, _ in asked]
        response = await self._send("batch", {"items": items}, port)
        responses = [response] * len(requests)
        if response.status == 200:
            responses = [
                _as_single(each, response) for each in json.loads(response.body)["results"]
            ]
        for request, each in zip(requests, responses, strict=True):
            self._judge(request, each, episode)

    def _judge(self, request: Request, response: Response, episode: Episode | None) -> None:
        outcome = self._site.checker.outcome(request, response)
        row = episode.scenario.name if episode else QUIET
        self._site.tallies[row].add(outcome, response.ended - request.begun)
        if outcome == "wrong":
            text = f"{self._site.name}: {row}: {request.text} -> {response}"
            self._site.violations.append(f"{text}; {self._site.checker.context(request)}")

    async def _send(self, path: str, record: object, port: int) -> Response:
        url = f"http://127.0.0.1:{port}/api/v1/identify/{path}"
        status, body, retry_after = 0, b"", None
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(url, json=record) as response:
                body = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
        return Response(status, body, retry_after, time.monotonic())


def _is_card(text: str) -> bool:
    return text[:1].isdigit() or not text


def _item(text: str) -> dict[str, str]:
    return {"card_number" if _is_card(text) else "input": text}


def _as_single(record: dict[str, str], batch: Response) -> Response:
    """Return the response that a single lookup with this result of a batch would have."""
    status = _STATUSES.get(record.get("code", record["status"]), 0)
    body = json.dumps(record, separators=(",", ":")).encode()
    return Response(status, body, "1" if status == 503 else None, batch.ended)


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


Harness = Callable[[Path, float], AbstractAsyncContextManager[list[Site]]]
"""A function that runs services under test in a folder, for a maximum time in seconds."""


async def run(
    seconds: float, seed: int, rate: float = 40.0, harnesses: Sequence[Harness] = (running_sites,)
) -> list[Site]:
    """Test all services for ``seconds``, each with ``rate`` requests per second."""
    random = Random(seed)
    hold = (1.0, 3.0) if seconds > _SHORT else _SHORT_HOLD
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack, _session() as session, asyncio.TaskGroup() as group:
            running = [each(Path(folder), seconds + 60) for each in harnesses]
            sites = [site for each in running for site in await stack.enter_async_context(each)]
            until = time.monotonic() + seconds
            for site in sites:
                load = Load(site, session, Random(random.random()))
                injector = FaultInjector(site, load, Random(random.random()), hold)
                group.create_task(load.run(until, rate))
                group.create_task(injector.run(until))
        sites[0].violations += _leaks(Path(folder))
    return sites


async def run_in_order(harness: Harness, rate: float = 20.0) -> list[Site]:
    """Inject each fault of each service once, in order, while requests are sent to all services."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            harness(Path(folder), 240) as sites,
            _session() as session,
            asyncio.TaskGroup() as group,
        ):
            for site in sites:
                group.create_task(_in_order(site, session, rate))
        sites[0].violations += _leaks(Path(folder))
    return sites


def _leaks(folder: Path) -> list[str]:
    """Return the lines of logs that contain a key, a nickname, a profile URL or a card number."""
    logs = "".join(each.read_text() for each in folder.rglob("*.log"))
    return [f"a secret is logged: {line}" for line in logs.splitlines() if _SECRET.search(line)]


async def _in_order(site: Site, session: aiohttp.ClientSession, rate: float) -> None:
    random = Random(0)
    load = Load(site, session, random)
    loading = asyncio.create_task(load.run(math.inf, rate))
    await FaultInjector(site, load, random, _SHORT_HOLD).run_each()
    loading.cancel()
    await asyncio.wait([loading])


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"})


def rows(sites: Sequence[Site]) -> list[dict[str, str | int | float]]:
    """Return the table of results. It has one row for each fault of each service."""
    return [
        {
            "fault": f"{site.name}: {name}",
            "requests": tally.outcomes.total(),
            **{outcome: tally.outcomes[outcome] for outcome in SHOWN},
            "worst latency": round(tally.worst_latency, 3),
            "seconds to recover": round(tally.recovery, 2),
            "to follow": round(max(tally.delays.values(), default=0.0), 2),
        }
        for site in sites
        for name, tally in sorted(site.tallies.items(), key=lambda item: item[0] != QUIET)
    ]


def show(sites: Sequence[Site]) -> None:
    """Print the table of results and the first violations."""
    table = Table(*COLUMNS, title="Every response compared with the reference")
    for row in rows(sites):
        table.add_row(*(str(row[column]) for column in COLUMNS))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    bad = sum(tally.outcomes["422"] for site in sites for tally in site.tallies.values())
    console.print(f"{bad} of the requests had an invalid format, and were answered 422.")
    for violation in [violation for site in sites for violation in site.violations][:_MAX_SHOWN]:
        console.print(f"wrong: {violation}", markup=False, style="red")


@dataclass(frozen=True)
class Engine:
    """Services over one kind of source, and the program that the source needs."""

    harness: Harness
    needs: str | None = None

    @property
    def is_installed(self) -> bool:
        """True if the program is installed, or if none is needed."""
        if self.needs == "postgres":
            return binaries() is not None
        return self.needs is None or shutil.which(self.needs, path=SEARCH_PATH) is not None


ENGINES = {
    "files": Engine(running_sites),
    "sqlite": Engine(running_sqlite_sites),
    "upstream": Engine(running_directory_sites),
    "postgres": Engine(running_postgres_sites, "postgres"),
    "redis": Engine(running_redis_sites, "redis-server"),
    "ldap": Engine(running_ldap_sites, "slapd"),
    "replicas": Engine(running_replicas, "redis-server"),
    "failover-postgres": Engine(running_postgres_failover, "postgres"),
    "failover-redis": Engine(running_redis_failover, "redis-server"),
    "two-ldap": Engine(running_two_ldap_servers, "slapd"),
    "two-postgres": Engine(running_two_postgres_servers, "postgres"),
    "two-upstream": Engine(running_two_upstreams),
}


def _chosen(text: str) -> list[str]:
    """Parse names of engines, separated by commas. An empty text selects all engines.

    The first part of names, such as failover, selects all engines whose names begin with it.
    """
    names: list[str] = []
    for name in text.split(",") if text else ENGINES:
        of_set = [each for each in ENGINES if each.startswith(f"{name}-")]
        names += of_set or [name]
    if unknown := set(names) - ENGINES.keys():
        known = ", ".join(ENGINES)
        raise argparse.ArgumentTypeError(f"no engine {', '.join(unknown)}; there are {known}")
    return names


def main() -> int:
    """Run from the command line. Return 1 after a wrong response."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="duration for each engine")
    parser.add_argument(
        "--engines", type=_chosen, default="", help=f"from {', '.join(ENGINES)}; all by default"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--rate", type=float, default=40, help="requests per second to each service"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    given = parser.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    console = Console(stderr=True)
    console.print(f"seed {seed}, {given.seconds:g} s for each engine", highlight=False)
    sites: list[Site] = []
    for name in given.engines:
        if ENGINES[name].is_installed:
            sites += asyncio.run(run(given.seconds, seed, given.rate, [ENGINES[name].harness]))
        else:
            console.print(f"{name}: {not_installed(str(ENGINES[name].needs))}")
    if given.json:
        violations = [violation for site in sites for violation in site.violations]
        record = {"seed": seed, "rows": rows(sites), "violations": violations}
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        show(sites)
    return 1 if any(site.violations for site in sites) else 0


if __name__ == "__main__":
    sys.exit(main())
