"""The reference: the result of a run of the chain, from what the backends really did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.model.recording_backends import Call, Failed, RecordingBackend, Run
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.model import Query, User

TIMEOUT = 2.0
"""Seconds that one lookup may take."""
TICK = 0.25
"""Steps in which the clock moves while something is under way."""
_SPREAD = 1.2


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The result of a run of the chain that could be determined."""

    user: User | None
    backend: str = ""
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class Chain:
    """The configured backends; ``calls`` are all that were made, by backend."""

    backends: Sequence[RecordingBackend]
    limits: CacheLimits
    calls: Mapping[str, Sequence[Call]]

    def result(self, run: Run) -> ChainResult | None:
        """The result of the whole chain; `None` if it could not be determined."""
        skipped = False
        for backend in self._serving(run.query):
            call = run.calls.get(backend.name)
            did = Failed.UNAVAILABLE if call is None else call.did
            if isinstance(did, User):
                return ChainResult(did, backend.name, self._ttl(backend, degraded=skipped))
            if did is not None:
                if did is Failed.BROKEN or backend.options.on_unavailable == "fail":
                    return None
                skipped = True
        if skipped or not self._of_this_kind(run.query):
            return None
        return ChainResult(None, ttl=self._negative_ttl(run.query))

    def _ttl(self, backend: RecordingBackend, *, degraded: bool) -> float:
        own = backend.options.cache_ttl
        ttl = self.limits.ttl if own is None else own
        return min(ttl, self.limits.degraded_ttl) if degraded else ttl

    def _negative_ttl(self, query: Query) -> float:
        own = [each.options.negative_ttl for each in self._of_this_kind(query)]
        return min(self.limits.negative_ttl, *(ttl for ttl in own if ttl is not None), 1e9)

    def shortest(self, result: ChainResult) -> float:
        """Return how long it is fresh at least, with the largest jitter."""
        return result.ttl * (1 - self.limits.jitter)

    def edges(self, run: Run) -> list[float]:
        """Return the seconds after which a limit of the run's outcome is reached."""
        result = self.result(run)
        if result is None:
            return [self.limits.failure_memo]
        shortest = self.shortest(result)
        edges = [result.ttl * self.limits.refresh_ahead, shortest, result.ttl]
        if result.user is None:
            return edges
        stale = self.limits.stale_if_error
        return [*edges, self.limits.degraded_ttl, shortest + stale, result.ttl + stale]

    def has_cause(self, run: Run) -> bool:
        """Whether a backend failed, or was rightly not called."""
        for backend in self._serving(run.query):
            call = run.calls.get(backend.name)
            if call is None:
                return self._may_be_left_alone(backend, run)
            if isinstance(call.did, Failed):
                return True
        return not self._of_this_kind(run.query)

    def _may_be_left_alone(self, backend: RecordingBackend, run: Run) -> bool:
        assert run.ended is not None
        if run.ended.time - run.begun.time > TIMEOUT - TICK:
            return True
        calls = self.calls.get(backend.name, [])
        beside = [call for call in calls if _overlaps(call, run)]
        if len(beside) >= backend.options.max_concurrent:
            return True
        last = self._last_failure(backend, calls)
        if last is None:
            return False
        probed = bool(beside)
        return probed or run.ended.time - last <= backend.options.breaker.open_max * _SPREAD

    def _last_failure(self, backend: RecordingBackend, calls: Sequence[Call]) -> float | None:
        """When it last failed, if ever it failed often enough in a row."""
        breaker = backend.options.breaker
        ended = sorted(
            (call.ended.moment, call.ended.time, call.did)
            for call in calls
            if call.ended is not None
        )
        in_a_row, opened, last = 0, False, float("-inf")
        for _, time, did in ended:
            if did is Failed.UNAVAILABLE:
                in_a_row += 1
                last = time
            else:
                in_a_row = 0
            opened = opened or in_a_row >= breaker.failures
        return last if opened else None

    def _of_this_kind(self, query: Query) -> list[RecordingBackend]:
        return [each for each in self.backends if type(query) in each.serves]

    def _serving(self, query: Query) -> list[RecordingBackend]:
        """Whether the query matches: ``match`` is here the start of a nickname, or nothing."""
        text = query.text
        matches = {None: True, "@a.*": text.startswith("@a")}
        return [each for each in self._of_this_kind(query) if matches[each.options.match]]


def _overlaps(call: Call, run: Run) -> bool:
    assert run.ended is not None
    return call.begun.moment < run.ended.moment and (
        call.ended is None or call.ended.moment > run.begun.moment
    )
