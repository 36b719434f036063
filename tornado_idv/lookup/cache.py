"""The answer cache. Found users and "not found" answers have separate limits.

An answer is *fresh* for its TTL. A found user is kept longer, and is served *stale* while the
backends are unavailable. A failure is memoized for a short time only.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field

from tornado_idv.errors import LookupFailed
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.entries import Entries, Entry, Epoch, Table
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import Answer, Query
from tornado_idv.options import Duration, Options, WholeNumber

_Count = Annotated[WholeNumber, Field(ge=1)]
_Fraction = Annotated[float, Field(ge=0, le=1)]

_OF_ABSENCES = Epoch()
"""The `Epoch` in "not found" entries. It never expires, because a purge removes these entries."""


class CacheLimits(Options):
    """Settings of the answer cache. Times are in seconds.

    "Not found" answers have a separate limit, so that guessed identifiers cannot evict users.
    """

    ttl: Duration = 300.0
    """The time to live of a found user in the cache."""
    negative_ttl: Duration = 30.0
    """The time to live of "not found" in the cache."""
    max_entries: _Count = 100_000
    """The maximum number of found users."""
    max_negative_entries: _Count = 20_000
    """The maximum number of "not found" answers."""
    jitter: _Fraction = 0.1
    """The largest random reduction of a TTL, as a fraction. It spreads the expiry of entries."""
    stale_if_error: Duration = 3600.0
    """The time to serve a found user after the TTL, while backends are unavailable."""
    refresh_ahead: _Fraction = 0.8
    """The fraction of the TTL after which a hit starts a refresh in the background."""
    degraded_ttl: Duration = 30.0
    """The maximum TTL of a user found after an unavailable backend was skipped."""
    failure_memo: Duration = 2.0
    """The time after a failed lookup in which the same query gets 503 without a new lookup."""

    def of_answers(self) -> dict[str, object]:
        """Return the settings with non-default values, without the settings that features add."""
        return self.model_dump(include=set(CacheLimits.model_fields), exclude_defaults=True)


class AnswerCache:
    """The cached answers and failures, by query.

    ``timer`` returns seconds and never goes back. ``chance`` returns random numbers from 0 to 1.
    """

    def __init__(
        self,
        limits: CacheLimits,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        counters: Counters | None = None,
    ) -> None:
        self.limits = limits
        self.counters = counters or Counters()
        self.timer = timer
        self._chance = chance
        self._found = Entries(limits.max_entries, self.counters)
        self._negative = Entries(limits.max_negative_entries, self.counters)
        self._failures = Table[tuple[float, LookupFailed]](limits.max_negative_entries, Counters())
        self._epochs: defaultdict[str | None, Epoch] = defaultdict(Epoch)
        self.on_late_hit: Callable[[Query], object] = lambda _: None
        """Called with the query at the first hit on an entry that is due for a refresh."""
        self.on_purge: Callable[[], object] = lambda: None
        """Called after each purge, and when `drop_user` drops a user in a file of `persisted`."""
        self.on_gone: Callable[[Query], object] = lambda _: None
        """Called when `drop_user` drops a user. Another layer may have the user, too."""
        self.persisted: Sequence[Container[str]] = ()
        """For each snapshot file, the queries (as text) that find the users in this file."""
        self.purges = 0
        """The number of purges so far."""
        self.related = [self]
        """All caches that lookups still use, oldest first. The last is the current directory's."""
        self.calls: dict[str, Any] = {}
        """The running lookups whose answers may be stored, by the text of their query."""
        self.running: dict[Any, str] = {}  # the text of the query, by task

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of entries for found users and for "not found", including expired entries."""
        return {"found": len(self._found), "negative": len(self._negative)}

    def get(self, query: Query) -> Answer | None:
        """Return the fresh cached answer or ``None``. The call does no I/O and never waits."""
        text, now = query.text, self.timer()
        entry = self._found.use(text) or self._negative.use(text)
        if entry is None or entry.epoch.expired or now >= entry.fresh_until:
            return None
        if now >= entry.refresh_at:
            entry.refresh_at = entry.fresh_until  # one refresh for each entry
            self.on_late_hit(query)
        return entry.answer

    def peek(self, query: Query) -> Answer | None:
        """Return the same answer as `get`, without an LRU update and without a refresh."""
        entry = self._found.find(query.text) or self._negative.find(query.text)
        if entry is None or entry.epoch.expired or self.timer() >= entry.fresh_until:
            return None
        return entry.answer

    def get_failure(self, query: Query) -> LookupFailed | None:
        """Return the memoized failure of a recent lookup, or ``None``."""
        failed = self._failures.find(query.text)
        return failed[1] if failed is not None and self.timer() < failed[0] else None

    def get_stale(self, query: Query) -> Answer | None:
        """After a failed lookup, return the found answer to serve, fresh or stale, or ``None``."""
        entry = self._found.find(query.text)
        if entry is None or entry.epoch.expired:
            return None
        now = self.timer()
        if now < entry.fresh_until:
            return entry.answer
        return replace(entry.answer, stale=True) if now < entry.stale_until else None

    def ttl(self, answer: Answer) -> float:
        """Return the time to live of an answer in seconds, without jitter."""
        limits, ttl = self.limits, answer.ttl
        if ttl is None:
            ttl = limits.ttl if answer.found else limits.negative_ttl
        return min(ttl, limits.degraded_ttl) if answer.degraded else ttl

    def keep_stale(self, query: Query, answer: Answer, seconds: float) -> None:
        """Store a found answer to serve stale for ``seconds``, unless one is stored for longer."""
        before, now = self._found.find(query.text), self.timer()
        if before is None or before.epoch.expired or before.stale_until < now + seconds:
            epoch = self._epochs[answer.backend]
            # The answer is fresh until now, so `get` never returns it.
            self._found.put(query.text, Entry(answer, epoch, now, now, now + seconds))

    def found_entries(self) -> Iterator[Iterable[tuple[str, Entry]]]:
        """Yield the entries of found users in groups, each with the text of its query.

        Lookups may run between two groups. Later groups omit entries removed meanwhile, and may
        omit new entries.
        """
        for part in self._found.parts():
            yield (each for each in part if not each[1].epoch.expired)

    def take_found_answers(self, other: AnswerCache, backends: Collection[str]) -> None:
        """Move the found answers of ``backends`` from the ``other`` cache to this cache.

        Both caches must have the same ``max_entries``. Running lookups still use ``other``. If
        such a lookup fails, its callers get the stored answer as stale, so ``other`` keeps a copy.
        The time of the call does not depend on the number of entries.
        """
        kept = Entries(other.limits.max_entries, other.counters)
        epochs, other._epochs = other._epochs, defaultdict(Epoch)
        for text in other.running.values():
            if (entry := other._found.find(text)) and not entry.epoch.expired:
                kept.put(text, replace(entry, epoch=other._epochs[entry.answer.backend]))
        self._found, other._found = other._found, kept
        for backend, epoch in epochs.items():
            if backend in backends:
                self._epochs[backend] = epoch
            else:
                epoch.expired = True
                self._found.sweep()

    def describe(self, query: Query) -> Literal["found", "not_found", "stale", "failure", "absent"]:
        """Return the state of a query. A ``stale`` answer is served only if the lookup fails."""
        if answer := self.peek(query) or self.get_stale(query):
            return "stale" if answer.stale else "found" if answer.found else "not_found"
        return "failure" if self.get_failure(query) else "absent"

    def store_failure(self, query: Query, error: LookupFailed) -> None:
        """Keep the failure of a lookup for ``failure_memo`` seconds."""
        error = error.copy()  # without the frames of its traceback
        self._failures.put(query.text, (self.timer() + self.limits.failure_memo, error))

    def store(self, query: Query, answer: Answer) -> None:
        """Replace the cached answer of a query. The new answer is stored only if cacheable."""
        text, limits = query.text, self.limits
        ttl = stale_ttl = 0.0
        if answer.storable:
            ttl = self.ttl(answer) * (1 - limits.jitter * self._chance())
            stale_ttl = limits.stale_if_error if answer.found else 0.0
        is_kept = ttl + stale_ttl > 0
        if not (answer.found and is_kept):
            # The earlier answer is out of date, and must not be served stale either. `get` reads
            # found answers first, so this one would hide a newer "not found".
            self.drop_user(query)
        if not is_kept:
            return
        now = self.timer()
        fresh_until = refresh_at = now + ttl
        entries, epoch = self._negative, _OF_ABSENCES
        if answer.found:
            self._negative.pop(text)
            entries, epoch = self._found, self._epochs[answer.backend]
            refresh_at = now + ttl * limits.refresh_ahead
        entries.put(text, Entry(answer, epoch, fresh_until, refresh_at, fresh_until + stale_ttl))

    def drop_user(self, query: Query) -> None:
        """Drop a user that a lookup no longer finds from all `related` caches and their `calls`."""
        for each in self.related:
            each.calls.pop(query.text, None)
            if each._found.drop_user(query.text):  # noqa: SLF001 - of the same class
                self.on_gone(query)
        if any(query.text in each for each in self.persisted):
            self.related[-1].on_purge()

    def apply(self, purge: Purge) -> None:
        """Remove the found answers that a purge covers, all "not found" answers and all failures.

        The result of a lookup that began before the purge is not stored, and new callers do not
        join this lookup, because its result may be outdated.
        """
        self.purges += 1
        self.calls.clear()
        if position := self.related.index(self):
            self.related[position - 1].apply(Purge())  # which continues with those before it
        for query in purge.queries:
            self._found.drop_user(query.text)
        for backend in purge.backends:
            if epoch := self._epochs.pop(backend, None):
                epoch.expired = True
        self._negative.clear()
        self._failures.clear()
        # Last: an object allocated while entries are freed would keep their memory pages in use.
        if not any(purge) or (purge.backends and not self._epochs):
            self._found.clear()
        elif purge.backends:
            self._found.sweep()
        self.on_purge()
