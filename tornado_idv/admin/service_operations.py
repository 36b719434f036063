"""The state of the service in this process, and what an operator may do to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index

from tornado_idv.admin.operations import Part, Record, parse_query
from tornado_idv.admin.report import (
    BackendReport,
    PartReport,
    Phase,
    ProcessReport,
    Reloads,
    Report,
)
from tornado_idv.errors import format_traceback
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shared_cache.tier import SharedTier
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.shared import Purge
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing
from tornado_idv.lookup.canary import KINDS
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import SHARED_CACHE, Counters, shadow_part
from tornado_idv.reload_result import ReloadResult

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServiceOperations:
    """The parts of a service that the admin listener uses; implements `Operations`.

    A reload replaces some of them. ``connections`` returns the number of public connections by
    state, ``connections_limit`` their maximum, and ``log_dropped`` the number of lost log lines.
    ``draining`` is set when the service begins to stop, and ``reloads`` before the admin listener
    is started.
    """

    directory: Directory
    identifiers: Identifiers
    keys: KeyRing
    store: StoreFollower | None
    counters: Counters
    connections: Callable[[], Mapping[str, int]]
    log_dropped: Callable[[], int]
    shared: SharedTier | None = None
    connections_limit: Callable[[], int] = lambda: 0
    parts: Sequence[Part] = ()
    sockets: PartReport | None = None
    draining: bool = False
    reloads: Reloads = field(init=False)

    @property
    def backends(self) -> list[str]:
        return [guard.name for guard in self.directory.guards]

    async def report(self, *, take_lag: bool = False) -> Report:
        process = self.process_report(take_lag=take_lag)
        phase: Phase = "draining" if self.draining else "ready"
        return Report(
            phase,
            os.getpid(),
            self.counters.started_at,
            process,
            self.counters,
            last_reload=self.reloads.last,
        )

    def process_report(self, *, take_lag: bool = False) -> ProcessReport:
        """Return the state of this process, and bring the counters up to date."""
        self.counters.log_dropped = self.log_dropped()
        tier = self.shared
        store = self.store
        parts = {"key store": store and PartReport(store.error, store.since)}
        parts |= {each.name: each.report() for each in self.parts}
        parts["unix sockets"] = self.sockets
        return ProcessReport(
            backends=[
                self._source(each.name, each.backend.options.kind, each)
                for each in self.directory.guards
            ],
            cache_entries=self.directory.cache.sizes,
            connections=dict(self.connections()),
            connections_limit=self.connections_limit(),
            parts={name: part for name, part in parts.items() if part},
            max_lag=self.counters.take_max_lag() if take_lag else self.counters.max_lag,
            shared_cache=self._source(SHARED_CACHE, tier.cache.options.kind, tier)
            if tier
            else None,
            pending_purges=tier.pending_purges if tier else 0,
            shadows=[self._shadow(each) for each in self.directory.shadows],
        )

    async def reload(self, **audited: str | None) -> ReloadResult:
        return await self.reloads.reload("admin", **audited)

    async def purge(self, target: Record) -> bool:
        match target:
            case {"all": True}:
                purge = Purge()
            case {"backend": str(name)}:
                purge = Purge(backends=(name,))
            case _:
                purge = Purge(queries=(parse_query(self.identifiers, target),))
        self.directory.purge(purge)
        for each in self.parts:
            await each.purged()
        return self.shared is None or await self.shared.wait_until_purged()

    async def explain(self, query: Record) -> Record:
        parsed = parse_query(self.identifiers, query)
        cached = self.directory.cache.describe(parsed)
        explanation = await self.directory.explain(parsed)
        calls = [
            {"backend": each.backend, "outcome": each.outcome, "ms": round(each.seconds * 1000, 2)}
            for each in explanation.calls
        ]
        return {"result": explanation.result, "cache": cached, "backends": calls}

    def _shadow(self, shadow: Shadow) -> BackendReport:
        kind = shadow.options.kind
        if shadow.guard is None:
            return BackendReport(shadow.name, kind, "closed", problem=shadow.problem)
        report = self._source(shadow_part(shadow.name), kind, shadow.guard)
        report.name, report.problem = shadow.name, shadow.problem or report.problem
        return report

    def _source(self, name: str, kind: str, source: Guard | SharedTier) -> BackendReport:
        if isinstance(source, Guard):
            users, problem, servers = _read(source.backend)
            canaries = source.canaries
        else:
            users, problem, servers, canaries = None, source.problem, [], {}
        lost = (each.problem for each in canaries.values() if each.problem is not None)
        counted, breaker = self.counters.backends[name], source.breaker
        return BackendReport(
            name=name,
            kind=kind,
            breaker=breaker.state,
            in_flight=source.in_flight,
            users=users,
            failing_since=counted.failing_since,
            last_error=counted.last_error,
            last_error_at=counted.last_error_at,
            problem=problem or next(lost, None),
            next_probe_s=round(breaker.next_probe, 1) if breaker.state == "open" else None,
            servers=servers,
            canaries={KINDS[kind]: each.found for kind, each in canaries.items()},
        )


def _read(backend: AnyBackend) -> tuple[int | None, str | None, list[tuple[str, str]]]:
    """Return ``user_count``, ``problem`` and ``servers``.

    Lookups do not need them: a plugin that fails here leaves the service ready, and degraded.
    """
    try:
        users, problem = backend.user_count, backend.problem
        servers = [(str(address), str(role)) for address, role in backend.servers]
        return None if users is None else index(users), problem and str(problem), servers
    except Exception as error:  # noqa: BLE001 a plugin may raise anything
        what = "user_count, problem or servers"
        _log.error("backend %s: %s:\n%s", backend.name, what, format_traceback(error))
        return None, f"{what} failed with {type(error).__name__}", []
