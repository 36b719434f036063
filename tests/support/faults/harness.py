"""Where the oracle runs: the services, each a real process, and the files behind them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.faults.checker import Episode, Judge, Tally, Times
from support.faults.client import FORGETFUL, SITE
from support.faults.fault_catalogue import Trouble, of_database, of_fixture, of_upstream
from support.faults.proxy import proxying
from support.faults.reference import Source, SqliteSource, Truth, YamlSource
from support.process import Running, running
from support.service import KEY

QUIET = "no fault"
TIMES = Times()
CONFIG = f"""\
profile_sites: [{SITE}]
server: {{port: 0, request_timeout: {TIMES.timeout * 1000:.0f}ms}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
cache: {{ttl: {TIMES.seen_ttl * 1000:.0f}ms, negative_ttl: {TIMES.negative_ttl * 1000:.0f}ms,
        stale_if_error: {TIMES.stale * 1000:.0f}ms, degraded_ttl: 500ms, failure_memo: 300ms}}
logging: {{level: warning}}
backends:
"""
PATIENCE = "timeout: 400ms, breaker: {failures: 5, open_for: 300ms, open_max: 1s}"


@dataclass
class Site:
    """A service under test, with its users and what may happen to them."""

    name: str
    port: int
    judge: Judge
    sources: Sequence[Source]
    troubles: Sequence[Trouble]
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    lies: list[str] = field(default_factory=list)

    @property
    def episode(self) -> Episode | None:
        """What is out of order now."""
        last = self.judge.episodes[-1:]
        return next((each for each in last if each.recovered > time.monotonic()), None)


def reads(source: Source) -> str:
    """A backend over a file that is in the folder of the configuration."""
    kind = "yaml" if isinstance(source, YamlSource) else "sqlite"
    return f"  - {{name: {source.letter}, kind: {kind}, path: {source.path.name}, {PATIENCE}}}\n"


def asks(port: int, on_unavailable: str) -> str:
    """A backend over another service."""
    return (
        f"  - {{name: other, kind: upstream, base_url: 'http://127.0.0.1:{port}', {PATIENCE},"
        f" cache_ttl: {TIMES.ttl * 1000:.0f}ms, on_unavailable: {on_unavailable},"
        f" auth: {{kind: bearer, token: {KEY}}}}}\n"
    )


class _Builder:
    """Makes folders, files and processes; ``stack`` ends what was begun."""

    def __init__(self, folder: Path, patience: float, stack: AsyncExitStack) -> None:
        self._folder, self._patience, self._stack = folder, patience, stack

    def file(self, kind: type[Source], name: str, truth: Truth) -> Source:
        """A source at a place like ``chain/d.db``; the letter is that of the file."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return kind(path, path.stem, truth)

    async def serve(self, **configs: str) -> dict[str, Running]:
        """Processes by the names of their folders, started at once."""
        services = await asyncio.gather(
            *(asyncio.to_thread(self._serve, name, config) for name, config in configs.items())
        )
        return dict(zip(configs, services, strict=True))

    def _serve(self, name: str, config: str) -> Running:
        path = self._folder / name / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(config)
        return self._stack.enter_context(running(path, patience=self._patience))


@asynccontextmanager
async def ground(folder: Path, patience: float) -> AsyncIterator[list[Site]]:
    """The four services under test, for at most ``patience`` seconds.

    One over a database, one over a fixture, one over another service through a proxy, and
    one over a chain of all three, the first of which lets the chain go on.
    """
    async with AsyncExitStack() as stack:
        build = _Builder(folder, patience, stack)
        truths = [Truth() for _ in range(4)]
        s = build.file(SqliteSource, "sqlite/s.db", truths[0])
        y = build.file(YamlSource, "yaml/y.yaml", truths[1])
        u = build.file(YamlSource, "behind/u.yaml", truths[2])
        c = build.file(YamlSource, "first/c.yaml", truths[3])
        d = build.file(SqliteSource, "chain/d.db", truths[3])
        e = build.file(YamlSource, "chain/e.yaml", truths[3])
        others = await build.serve(behind=FORGETFUL + reads(u), first=FORGETFUL + reads(c))
        near = await stack.enter_async_context(proxying(others["behind"].port))
        far = await stack.enter_async_context(proxying(others["first"].port))
        services = await build.serve(
            sqlite=CONFIG + reads(s),
            yaml=CONFIG + reads(y),
            upstream=CONFIG + asks(near.port, "fail"),
            chain=CONFIG + asks(far.port, "continue") + reads(d) + reads(e),
        )
        troubles = [
            [*of_database(s)],
            [*of_fixture(y)],
            [*of_upstream(u, near, others["behind"])],
            [*of_upstream(c, far, others["first"]), *of_database(d)],
        ]
        sources = [[s], [y], [u], [c, d, e]]
        yield [
            Site(name, service.port, Judge(truth, TIMES, "uc"), its_sources, its_troubles)
            for (name, service), truth, its_sources, its_troubles in zip(
                services.items(), truths, sources, troubles, strict=True
            )
        ]
