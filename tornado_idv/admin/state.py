"""The state of a running service, as health checks and the status report it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from typing import Any

from tornado_idv.identifiers import Identifiers
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing
from tornado_idv.log_format import format_time
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.metrics.counters import Counters

Record = dict[str, Any]

OPERATIONS = {"identify/url": "url", "identify/card": "card"}
"""Operations by their routes; every other response has the operation ``none``."""

FAILURES = ("backend_unavailable", "internal", "overloaded")
"""Codes of responses with a status of 500 or more."""
_SOON = 14 * 86400.0
"""Seconds before it expires in which a key is listed."""
_MAX_EXPIRING = 20
_own_version = cache(partial(version, "tornado-idv"))  # reads a file


@dataclass(slots=True)
class ServiceState:
    """The parts of a service that the admin listener reads.

    ``connections`` returns the number of public connections by state, and ``log_dropped`` the
    number of lost log lines. ``draining`` is set when the service begins to stop.
    """

    directory: Directory
    identifiers: Identifiers
    keys: KeyRing
    store: StoreFollower | None
    counters: Counters
    connections: Callable[[], Mapping[str, int]]
    log_dropped: Callable[[], int]
    draining: bool = False

    def degraded(self) -> list[str]:
        """Return which parts fail, though the service can respond."""
        parts = [f"backend {each.name}" for each in self.directory.guards if self._is_failing(each)]
        if self.store is not None and self.store.state.error is not None:
            parts.append("key store")
        return parts

    def health(self, *, verbose: bool = False) -> Record:
        """Return whether requests may be sent here; failing backends do not change that."""
        degraded = self.degraded()
        record: Record = {"status": "degraded" if degraded else "ready", "degraded": degraded}
        if self.draining:
            record["status"] = "draining"
        if verbose:
            record["backends"] = [self._backend(each) for each in self.directory.guards]
            record["key_store"] = self._key_store()
        return record

    def status(self) -> Record:
        """Return an overview for the operator."""
        counters = self.counters
        return {
            **self.health(verbose=True),
            "version": _own_version(),
            "pid": os.getpid(),
            "started_at": format_time(counters.started_at),
            "uptime_s": round(time.time() - counters.started_at, 1),
            "requests": self._requests(),
            "cache": {
                "entries": self.directory.cache.sizes,
                "lookups": self.cache_lookups(),
                "evictions": counters.evictions,
                "refreshes": dict(counters.refreshes),
            },
            "connections": dict(self.connections()),
            "keys": self._keys(),
            "log_dropped": self.log_dropped(),
        }

    def cache_lookups(self) -> dict[str, int]:
        """Return the number of lookups by what the cache contributed."""
        counted = self.counters.cache_lookups
        lookups = {word: counted[word] for word in ("hit", "stale", "coalesced", "miss")}
        lookups["hit"] += sum(each.count for each in self.counters.packet_hits.values())
        return lookups

    def _keys(self) -> Record:
        now = time.time()
        coming = (each for each in self.keys.expirations().items() if each[1] > now)
        expiring = list(islice(coming, _MAX_EXPIRING))
        return {
            "count": len(self.keys.ids),
            "next_expiry": _time_or_none(expiring[0][1] if expiring else None),
            "expiring": [
                {"id": key_id, "expires": format_time(at)}
                for key_id, at in expiring
                if at < now + _SOON
            ],
        }

    def _requests(self) -> dict[str, dict[str, int]]:
        requests: dict[str, dict[str, int]] = {}
        for (route, code), durations in self.counters.all_responses():
            of_operation = requests.setdefault(OPERATIONS.get(route, "none"), {})
            of_operation[code] = of_operation.get(code, 0) + durations.count
        return requests

    def _is_failing(self, guard: Guard) -> bool:
        counted = self.counters.backend(guard.name)
        return guard.breaker != "closed" or counted.failing_since is not None

    def _backend(self, guard: Guard) -> Record:
        counted = self.counters.backend(guard.name)
        return {
            "name": guard.name,
            "kind": guard.backend.options.kind,
            "available": not self._is_failing(guard),
            "breaker": guard.breaker,
            "failing_since": _time_or_none(counted.failing_since),
            "last_error": counted.last_error,
            "last_error_at": _time_or_none(counted.last_error_at or None),
            "in_flight": guard.in_flight,
            "calls": dict(counted.results),
        }

    def _key_store(self) -> Record | None:
        if self.store is None:
            return None
        state = self.store.state
        return {"error": state.error, "since": format_time(state.since)}


def _time_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)
