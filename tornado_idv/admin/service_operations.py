"""The state of the service in this process, and its operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tornado_idv.admin.operations import Part, Record, parse_query
from tornado_idv.admin.report import PartReport, Phase, ProcessReport, ReloadResult, Reloads, Report
from tornado_idv.admin.sources import guard_report
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.shared import Purge
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters


@dataclass(slots=True)
class ServiceOperations:
    """The operations on the service in this process. Implements `Operations`.

    A reload replaces some attributes. ``connections`` returns the number of public connections by
    state, ``connections_limit`` their maximum, and ``log_dropped`` the number of lost log lines.
    ``draining`` is set at the beginning of a stop, ``reloads`` before the start of the admin
    listener.
    """

    directory: Directory
    identifiers: Identifiers
    keys: KeyRing
    store: StoreFollower | None
    counters: Counters
    connections: Callable[[], Mapping[str, int]]
    log_dropped: Callable[[], int]
    connections_limit: Callable[[], int] = lambda: 0
    parts: Sequence[Part] = ()
    sockets: PartReport | None = None
    draining: bool = False
    reloads: Reloads = field(init=False)

    @property
    def backends(self) -> list[str]:
        return [guard.name for guard in self.directory.guards]

    async def report(self, *, take_lag: bool = False) -> Report:
        phase: Phase = "draining" if self.draining else "ready"
        return Report(
            phase,
            os.getpid(),
            self.counters.started_at,
            self.process_report(take_lag=take_lag),
            self.counters,
            last_reload=self.reloads.last,
        )

    def process_report(self, *, take_lag: bool = False) -> ProcessReport:
        """Return the state of this process. Also update the counters."""
        self.counters.log_dropped = self.log_dropped()
        store = self.store
        parts = {"key store": store and PartReport(store.error, store.since)}
        parts |= {each.name: each.report() for each in self.parts}
        parts["unix sockets"] = self.sockets
        return ProcessReport(
            backends=[guard_report(each, self.counters) for each in self.directory.guards],
            cache_entries=self.directory.cache.sizes,
            connections=dict(self.connections()),
            connections_limit=self.connections_limit(),
            parts={name: part for name, part in parts.items() if part},
            max_lag=self.counters.take_max_lag() if take_lag else self.counters.max_lag,
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
        return all([await each.purged() for each in self.parts])

    async def explain(self, query: Record) -> Record:
        parsed = parse_query(self.identifiers, query)
        cached = self.directory.cache.describe(parsed)
        explanation = await self.directory.explain(parsed)
        calls = [
            {"backend": each.backend, "outcome": each.outcome, "ms": round(each.seconds * 1000, 2)}
            for each in explanation.calls
        ]
        return {"result": explanation.result, "cache": cached, "backends": calls}
