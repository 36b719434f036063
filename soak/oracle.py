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
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
from rich.console import Console
from rich.table import Table

from soak.checker import Outcome
from soak.directories import running_directory_sites
from soak.failover_postgres import running_postgres_failover
from soak.failover_redis import running_redis_failover
from soak.fault_injector import FaultInjector
from soak.harness import QUIET, Site, running_sites
from soak.ldap_users import running_ldap_sites
from soak.load import Load
from soak.postgres import running_postgres_sites
from soak.redis_users import running_redis_sites
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

_MAX_SHOWN = 10
_SHORT = 30.0
"""Maximum length of a run with short faults, in seconds."""
_SHORT_HOLD = (0.3, 0.6)
_SECRET = re.compile(rf"{KEY}|[@/][a-z]-(?:no)?\d|\b\d{{2,3}}[17]0000\d{{4}}\b")
SHOWN: tuple[Outcome, ...] = ("fresh", "stale", "404", "503", "wrong")
COLUMNS = ("fault", "requests", *SHOWN, "worst latency", "seconds to recover", "to follow")


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
