"""What must hold for every lookup, derived from the record of what really happened.

A lookup may return what a whole pass through the chain amounts to: if it was recent enough,
it was not purged, and nothing newer replaced it.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from support.model.recording_backends import At, Lookup, Record, Run
from support.model.reference_chain import TICK, TIMEOUT, Chain, ChainResult
from tornado_idv.errors import Broken, Unavailable
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.model import Answer, Query, User


@dataclass(frozen=True, slots=True)
class Invariants:
    """Checks the lookups of one history."""

    record: Record
    chain: Chain
    limits: CacheLimits

    def check(self, lookup: Lookup) -> None:
        """Raises `AssertionError` if a caller's result violates an invariant."""
        if lookup.left:
            assert isinstance(lookup.result, asyncio.CancelledError | Answer | Unavailable | Broken)
            return
        assert lookup.ended is not None
        took = lookup.ended.time - lookup.begun.time
        assert took <= TIMEOUT + TICK, "a lookup outlasts its time"
        self._check_cache_use(lookup)
        if not isinstance(lookup.result, Answer):
            assert isinstance(lookup.result, Unavailable | Broken), "an unexpected error is raised"
            self._check_failure(lookup)
        elif lookup.result.stale:
            self._check_stale(lookup, lookup.result)
        else:
            self._check_fresh(lookup, lookup.result)

    def check_run(self, run: Run) -> None:
        """Raise `AssertionError` if two lookups of one query run at once."""
        for other in run.beside:
            between = self._barrier_within(other.begun, run.begun)
            assert between or self._abandoned(other, run.begun), (
                "two concurrent lookups of one query"
            )

    def _check_fresh(self, lookup: Lookup, answer: Answer) -> None:
        assert any(
            _matches(answer, run, result) and _age(run, lookup.begun) < result.ttl
            for run, result in self._possible_results(lookup, lookup.begun)
        ), "an answer that no backend gave in time" if answer.found else "a wrong not-found"

    def _check_stale(self, lookup: Lookup, answer: Answer) -> None:
        assert answer.found, "a stale not-found"
        assert lookup.ended is not None
        assert any(
            _matches(answer, run, result)
            and self.chain.shortest(result)
            <= _age(run, lookup.ended)
            < result.ttl + self.limits.stale_if_error
            for run, result in self._possible_results(lookup, lookup.ended)
        ), "a stale answer that is purged, replaced or too old"
        assert self._may_fail(lookup), "a stale answer without need"

    def _check_failure(self, lookup: Lookup) -> None:
        assert self._may_fail(lookup), "a failure that is none"
        assert lookup.ended is not None
        kept = self._surely_kept(lookup, lookup.ended)
        if kept is not None:
            run, result = kept
            until = self.chain.shortest(result) + self.limits.stale_if_error
            stale = result.user is not None and _age(run, lookup.ended) < until
            assert not stale, "a failure in spite of a stale answer"

    def _check_cache_use(self, lookup: Lookup) -> None:
        """What is certainly cached is returned without a call."""
        kept = self._surely_kept(lookup, lookup.begun)
        if kept is not None and _age(kept[0], lookup.begun) < self.chain.shortest(kept[1]):
            answer = lookup.result
            assert isinstance(answer, Answer), "a failure in spite of a fresh answer"
            assert _matches(answer, *kept), "another answer than the cached one"
            assert not answer.stale, "a fresh answer called stale"
            assert not answer.coalesced, "a cached answer is marked as coalesced"
            assert lookup.refreshing or not self._began_within(lookup), "a lookup without need"
        elif not lookup.refreshing and self._surely_failing(lookup):
            assert not self._began_within(lookup), "a failure is not memoized"

    def _possible_results(self, lookup: Lookup, until: At) -> Iterator[tuple[Run, ChainResult]]:
        """What this caller could get, unless it is from before a barrier."""
        for run in self.record.runs.get(lookup.query, []):
            result = self.chain.result(run)
            if result is None or not _over_for(lookup, run):
                continue
            purged = self._purged(run, result, until)
            if not purged and not self._superseded(run, lookup):
                yield run, result

    def _concluded(self, query: Query, until: At) -> Iterator[tuple[Run, ChainResult]]:
        for run in self.record.runs.get(query, []):
            result = self.chain.result(run)
            if result is not None and _over(run, until):
                yield run, result

    def _purged(self, run: Run, result: ChainResult, until: At) -> bool:
        return any(
            result.user is None or barrier.names(result.user, result.backend)
            for barrier in self.record.barriers
            if run.begun.moment < barrier.at.moment < until.moment
        )

    def _superseded(self, run: Run, lookup: Lookup) -> bool:
        """Whether a newer answer was there when the lookup began."""
        assert run.ended is not None
        return any(
            run.ended.moment < newer.begun.moment and self._surely_stored(newer)
            for newer, _ in self._concluded(lookup.query, until=lookup.begun)
        )

    def _surely_stored(self, run: Run) -> bool:
        assert run.ended is not None
        return not self._barrier_within(run.begun, run.ended) and not self._abandoned(
            run, run.ended
        )

    def _surely_kept(self, lookup: Lookup, until: At) -> tuple[Run, ChainResult] | None:
        """The newest answer, if it was stored and nothing could have pushed it out."""
        newest = max(
            self._concluded(lookup.query, until),
            key=lambda pair: pair[0].begun.moment,
            default=None,
        )
        if newest is None or not self._surely_stored(newest[0]):
            return None
        found = newest[1].user is not None
        room = self.limits.max_entries if found else self.limits.max_negative_entries
        if room < len(self.record.runs) or self._purged(*newest, until):
            return None
        return None if self._dropped(*newest, until) else newest

    def _dropped(self, run: Run, result: ChainResult, until: At) -> bool:
        """Whether the user was not found by the other identifier since then."""
        user = result.user
        return user is not None and any(
            other.user is None and newer.ended is not None and newer.ended.moment > run.begun.moment
            for query in self.record.runs
            if query.text in (f"@{user.nickname}", user.card_number)
            for newer, other in self._concluded(query, until)
        )

    def _surely_failing(self, lookup: Lookup) -> bool:
        return self.limits.max_negative_entries >= len(self.record.runs) and any(
            _over(run, lookup.begun)
            and self.chain.result(run) is None
            and _age(run, lookup.begun) < self.limits.failure_memo
            and not self._barrier_within(run.begun, lookup.begun)
            and not self._abandoned(run, lookup.begun)
            for run in self.record.runs.get(lookup.query, [])
        )

    def _began_within(self, lookup: Lookup) -> bool:
        assert lookup.ended is not None
        return any(
            lookup.begun.moment < run.begun.moment < lookup.ended.moment
            for run in self.record.runs.get(lookup.query, [])
        )

    def _may_fail(self, lookup: Lookup) -> bool:
        assert lookup.ended is not None
        if lookup.ended.time - lookup.begun.time >= TIMEOUT:
            return True
        return any(
            _over_for(lookup, run)
            and _age(run, lookup.begun) < self.limits.failure_memo
            and not self._barrier_within(run.begun, lookup.begun)
            and self.chain.result(run) is None
            and self.chain.has_cause(run)
            for run in self.record.runs.get(lookup.query, [])
        )

    def _barrier_within(self, after: At, until: At) -> bool:
        return any(
            after.moment < barrier.at.moment < until.moment for barrier in self.record.barriers
        )

    def _abandoned(self, run: Run, until: At) -> bool:
        """Whether a caller who had waited too long let the run go."""
        return any(
            lookup.query == run.query
            and lookup.ended is not None
            and run.begun.moment < lookup.ended.moment < until.moment
            and lookup.ended.time - lookup.begun.time >= TIMEOUT
            for lookup in self.record.lookups
        )


def _matches(answer: Answer, run: Run, result: ChainResult) -> bool:
    """Whether the answer is what the run amounts to, and carries its time."""
    assert run.ended is not None
    return (
        answer.user == result.user
        and (answer.backend or "") == result.backend
        and answer.since == run.ended.time
        and answer.body == encode(result.user)
    )


def _age(run: Run, at: At) -> float:
    assert run.ended is not None
    return at.time - run.ended.time


def _over(run: Run, at: At) -> bool:
    return run.ended is not None and run.ended.moment < at.moment


def _over_for(lookup: Lookup, run: Run) -> bool:
    """Whether it had ended when the caller got its result; the order of tasks is chance."""
    assert lookup.ended is not None
    return (
        run.ended is not None
        and run.begun.moment < lookup.ended.moment
        and run.ended.time <= lookup.ended.time
    )


def encode(user: User | None) -> bytes:
    """The wire of these histories."""
    return b"absent" if user is None else user.plan.encode()
