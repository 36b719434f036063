"""The services under test, which are real processes, and the files of their users."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from soak.checker import Checker, Episode, Tally, Times
from soak.fault_catalogue import Scenario, of_database, of_fixture, of_upstream
from soak.people import FORGETFUL, SITE
from soak.proxy import proxying
from soak.reference import FileSource, Reference, Source, SqliteSource, YamlSource
from support.processes.process import ServiceProcess, running
from support.processes.service import KEY

QUIET = "no fault"
TIMES = Times()
CONFIG = f"""\
profile_sites: [{SITE}]
server: {{port: 0, request_timeout: {TIMES.timeout * 1000:.0f}ms}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
cache: {{ttl: {TIMES.seen_ttl * 1000:.0f}ms, negative_ttl: {TIMES.negative_ttl * 1000:.0f}ms,
        stale_if_error: {TIMES.stale * 1000:.0f}ms, degraded_ttl: 500ms, failure_memo: 300ms}}
logging: {{level: debug}}
backends:
"""
BACKEND_LIMITS = (
    f"timeout: {TIMES.backend_timeout * 1000:.0f}ms,"
    " breaker: {failures: 5, open_for: 300ms, open_max: 1s}"
)


class Change(Protocol):
    """A change that several processes must notice."""

    name: str

    async def make(self) -> None:
        """Make the change, at a place that the fault does not affect."""

    async def is_seen(self, port: int) -> bool:
        """Return whether the process at ``port`` has noticed the last change."""


@dataclass
class Site:
    """A service under test, with its sources of users and its fault scenarios.

    The service is one process, or several independent processes with the same sources. Each has a
    port.
    """

    name: str
    ports: Sequence[int]
    checker: Checker
    sources: Sequence[Source]
    scenarios: Sequence[Scenario]
    changes: Sequence[Change] = ()
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    violations: list[str] = field(default_factory=list)

    @property
    def episode(self) -> Episode | None:
        """The episode in progress, or ``None``."""
        last = self.checker.episodes[-1:]
        return next((each for each in last if each.recovered > time.monotonic()), None)


def reads(source: FileSource) -> str:
    """Return the configuration of a backend over a file in the same folder."""
    kind = "yaml" if isinstance(source, YamlSource) else "sqlite"
    return (
        f"  - {{name: {source.letter}, kind: {kind}, path: {source.path.name}, {BACKEND_LIMITS}}}\n"
    )


def asks(port: int, on_unavailable: str) -> str:
    """Return the configuration of a backend over another service at ``port``."""
    return (
        f"  - {{name: other, kind: upstream, base_url: 'http://127.0.0.1:{port}', {BACKEND_LIMITS},"
        f" cache_ttl: {TIMES.ttl * 1000:.0f}ms, on_unavailable: {on_unavailable},"
        f" auth: {{kind: bearer, token: {KEY}}}}}\n"
    )


class Builder:
    """Creates folders, files and processes. ``stack`` ends the processes."""

    def __init__(self, folder: Path, timeout: float, stack: AsyncExitStack) -> None:
        self._folder, self._timeout, self._stack = folder, timeout, stack

    def file(self, kind: type[FileSource], name: str, reference: Reference) -> FileSource:
        """Create a source at a path like ``chain/d.db``. Its nicknames begin with ``d``."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return kind(path, path.stem, reference)

    async def serve(self, **configs: str) -> dict[str, ServiceProcess]:
        """Start a process for each configuration, concurrently. Return the processes by name."""
        services = await asyncio.gather(
            *(asyncio.to_thread(self._serve, name, config) for name, config in configs.items())
        )
        return dict(zip(configs, services, strict=True))

    def _serve(self, name: str, config: str) -> ServiceProcess:
        path = self._folder / name / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(config)
        return self._stack.enter_context(running(path, timeout=self._timeout))


@asynccontextmanager
async def running_sites(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run four services under test, for at most ``max_seconds``.

    The source of each is a database; a fixture; another service behind a proxy; or a chain of all
    three. In the chain, the other service has ``on_unavailable: continue``.
    """
    async with AsyncExitStack() as stack:
        build = Builder(folder, max_seconds, stack)
        references = [Reference() for _ in range(4)]
        s = build.file(SqliteSource, "sqlite/s.db", references[0])
        y = build.file(YamlSource, "yaml/y.yaml", references[1])
        u = build.file(YamlSource, "behind/u.yaml", references[2])
        c = build.file(YamlSource, "first/c.yaml", references[3])
        d = build.file(SqliteSource, "chain/d.db", references[3])
        e = build.file(YamlSource, "chain/e.yaml", references[3])
        others = await build.serve(behind=FORGETFUL + reads(u), first=FORGETFUL + reads(c))
        near = await stack.enter_async_context(proxying(others["behind"].port))
        far = await stack.enter_async_context(proxying(others["first"].port))
        services = await build.serve(
            sqlite=CONFIG + reads(s),
            yaml=CONFIG + reads(y),
            upstream=CONFIG + asks(near.port, "fail"),
            chain=CONFIG + asks(far.port, "continue") + reads(d) + reads(e),
        )
        scenarios = [
            [*of_database(s)],
            [*of_fixture(y)],
            [*of_upstream(u, near, others["behind"])],
            [*of_upstream(c, far, others["first"]), *of_database(d)],
        ]
        sources = [[s], [y], [u], [c, d, e]]
        yield [
            Site(name, [service.port], Checker(reference, TIMES, "uc"), its_sources, its_scenarios)
            for (name, service), reference, its_sources, its_scenarios in zip(
                services.items(), references, sources, scenarios, strict=True
            )
        ]
