"""Seeded bugs of the cache, the guard and the chain, each of which the state machine must find."""

from __future__ import annotations

import logging

from hypothesis import Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.model.lookup_machine import Lookups
from support.model.mutants import Bug, Change, core

BUGS = (
    Bug(
        "a found user is fresh past the TTL",
        "cache",
        Change("AnswerCache.get", "now >= entry.fresh_until", "now >= entry.stale_until"),
        seed=15,
    ),
    Bug(
        "a hit extends the TTL",
        "cache",
        Change(
            "AnswerCache._on_hit",
            "entries.touch(query.text)",
            (
                "entries.touch(query.text)\n"
                "if now < entry.fresh_until:\n"
                "    entry.fresh_until = now + 60"
            ),
        ),
        seed=15,
    ),
    Bug(
        "jitter extends the TTL",
        "cache",
        Change(
            "AnswerCache.store",
            "1 - limits.jitter * self._chance()",
            "1 + limits.jitter * self._chance()",
        ),
        seed=24,
    ),
    Bug(
        "not found has the TTL of found users",
        "chain",
        Change("Chain.__init__", "cache.limits.negative_ttl", "cache.limits.ttl"),
        seed=15,
    ),
    Bug(
        "a degraded answer has the normal TTL",
        "cache",
        Change(
            "AnswerCache.ttl", "min(ttl, limits.degraded_ttl) if answer.degraded else ttl", "ttl"
        ),
        seed=18,
    ),
    Bug(
        "an answer computed before a purge is stored",
        "single_flight",
        Change(
            "SingleFlight._resolve",
            "self._find(query) is call",
            "True",
        ),
        seed=13,
    ),
    Bug(
        "a lookup started before a purge is joined",
        "single_flight",
        Change("SingleFlight._find", "call.purges == self._cache.purges", "True"),
        seed=6,
    ),
    Bug(
        "each caller starts a lookup",
        "single_flight",
        Change("SingleFlight.add", "self._find(query)", "None"),
        seed=0,
    ),
    Bug(
        "a purge of everything keeps found users",
        "cache",
        Change("AnswerCache.apply", "self._found.clear()", "None"),
        seed=3,
    ),
    Bug(
        "a purge of a user keeps the other entry",
        "cache",
        Change(
            "AnswerCache.apply",
            "self._found.drop_user(query.text)",
            "self._found.pop(query.text, None)",
        ),
        seed=19,
    ),
    Bug(
        "a purge keeps not found",
        "cache",
        Change("AnswerCache.apply", "self._negative.clear()", "None"),
        seed=19,
    ),
    Bug(
        "a purge of a backend keeps fresh answers",
        "cache",
        Change("AnswerCache.get", "entry is None or entry.epoch.expired", "entry is None"),
        seed=0,
    ),
    Bug(
        "a purge of a backend keeps stale answers",
        "cache",
        Change("AnswerCache.get_stale", "entry is None or entry.epoch.expired", "entry is None"),
        seed=0,
    ),
    Bug(
        "a stale answer never expires",
        "cache",
        Change("AnswerCache.store", "stale_until += limits.stale_if_error", "stale_until += 1e9"),
        seed=24,
    ),
    Bug(
        "a stale answer is not marked",
        "cache",
        Change("AnswerCache.get_stale", "replace(entry.answer, stale=True)", "entry.answer"),
        seed=15,
    ),
    Bug(
        "not found is served stale",
        "cache",
        Change(
            "AnswerCache.get_stale",
            "self._found.get(query.text)",
            "self._found.get(query.text) or self._negative.get(query.text)",
        ),
        Change(
            "AnswerCache.store",
            "others.pop(text, None)",
            (
                "others.pop(text, None)\n"
                "if not answer.found:\n"
                "    stale_until += limits.stale_if_error"
            ),
        ),
        seed=21,
    ),
    Bug(
        "a found answer outlives a later not found",
        "cache",
        Change("AnswerCache.store", "others.pop(text, None)", "None"),
        seed=12,
    ),
    Bug(
        "a memoized failure is reported as not found",
        "single_flight",
        Change(
            "SingleFlight.add",
            "self._settle(future, query, failure)",
            "self._settle(future, query, Answer(None, since=self._cache.timer(), body=b'absent'))",
        ),
        seed=1,
    ),
    Bug(
        "a failure is not memoized",
        "cache",
        Change("AnswerCache.store_failure", "self._failures[query.text] = error.copy()", "pass"),
        seed=10,
    ),
    Bug(
        "a failed refresh drops the answer",
        "cache",
        Change(
            "AnswerCache.store_failure",
            "self._failures[query.text] = error.copy()",
            ("self._found.pop(query.text, None)\nself._failures[query.text] = error.copy()"),
        ),
        seed=3,
    ),
    Bug(
        "a caller that leaves cancels the lookup",
        "single_flight",
        Change(
            "SingleFlight.add",
            "call.waiters.append(future)",
            (
                "call.waiters.append(future)\n"
                "stop = lambda done: done.cancelled() and call.task.cancel()\n"
                "future.add_done_callback(stop)"
            ),
        ),
        seed=0,
    ),
    Bug(
        "an open breaker is reported as not known",
        "guard",
        Change("Guard._find", "wait = self.breaker.next_probe", "return None"),
        seed=3,
    ),
    Bug(
        "a timeout is reported as not known",
        "guard",
        Change(
            "Guard._call",
            'raise Unavailable(f"no answer within {self._timeout:g} s") from None',
            "return None",
        ),
        seed=0,
    ),
    Bug(
        "a cancellation is reported as not known",
        "guard",
        Change(
            "Guard._call", 'raise Broken("its own work was cancelled") from None', "return None"
        ),
        seed=23,
    ),
    Bug(
        "an unexpected error is reported as not known",
        "guard",
        Change(
            "Guard._call",
            'raise Broken(f"failed with {type(error).__name__}") from error',
            "return None",
        ),
        seed=8,
    ),
    Bug(
        "another user than requested is accepted",
        "guard",
        Change(
            "Guard._validated",
            "query.text not in (f'@{user.nickname}', user.card_number)",
            "False",
        ),
        seed=3,
    ),
    Bug(
        "a broken backend is skipped",
        "guard",
        Change("Guard.find", "self._may_skip and isinstance(error, Unavailable)", "self._may_skip"),
        seed=26,
    ),
    Bug(
        "not known counts as a failure",
        "guard",
        Change(
            "Guard._find",
            "report = self.breaker.succeeded",
            "report = self.breaker.succeeded if answer else self.breaker.failed",
        ),
        seed=2,
    ),
    Bug(
        "a bulkhead permit is not released",
        "guard",
        Change("Guard._find", "self._bulkhead.release()", "None"),
        seed=0,
    ),
    Bug(
        "an open circuit never lets a probe through",
        "circuit_breaker",
        Change(
            "CircuitBreaker.try_acquire",
            "self._probing or self._timer() < self._open_until",
            "self._open_until",
        ),
        seed=4,
    ),
    Bug(
        "not found although a backend was skipped",
        "chain",
        Change("Chain.find", "raise skipped", "pass"),
        seed=0,
    ),
    Bug(
        "a backend that must not be skipped is skipped",
        "chain",
        Change("Chain.find", "not error.continues", "False"),
        seed=4,
    ),
    Bug(
        "an answer after a skipped backend is not degraded",
        "chain",
        Change("Chain.find", "answer.degraded or skipped is not None", "answer.degraded"),
        seed=18,
    ),
    Bug(
        "a change keeps answers of later backends",
        "directory",
        Change("Directory._purge_from", "names[names.index(changed) :]", "[changed]"),
        seed=0,
    ),
    Bug(
        "a query without backends is reported as not found",
        "chain",
        Change("Chain.find", "not calls", "False"),
        seed=14,
    ),
    Bug(
        "negative TTLs of backends are ignored",
        "chain",
        Change(
            "Chain.__init__",
            "min(ttls, default=default)",
            "default",
        ),
        seed=18,
    ),
    Bug(
        "the backends are called in reverse",
        "directory",
        Change(
            "Directory.__init__",
            "[Guard(each, accepts, on_backend_result, ttl=cache.limits.ttl) for each in backends]",
            (
                "[Guard(each, accepts, on_backend_result, ttl=cache.limits.ttl)"
                " for each in reversed(backends)]"
            ),
        ),
        seed=1,
    ),
)
_SEARCH = settings(
    max_examples=1500,
    stateful_step_count=50,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
)


def hunt(bug: Bug | None) -> str:
    """Return the error that the state machine reports for a core with this bug, or ``""``."""
    logging.getLogger("tornado_idv").setLevel(logging.CRITICAL)
    machine = seed(bug.seed if bug else 0)(type("Mutated", (Lookups,), {"core": core(bug)}))
    try:
        run_state_machine_as_test(machine, settings=_SEARCH)
    except AssertionError as error:
        return str(error) or type(error).__name__
    return ""
