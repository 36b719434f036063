"""Seeded bugs of the cache, the guard and the chain, each of which the state machine must find."""

from __future__ import annotations

import logging

from hypothesis import Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.model.lookup_machine import Lookups
from support.model.mutants import Bug, core

BUGS = (
    Bug(
        "a found user is fresh past the TTL",
        "cache",
        15,
        "now >= entry.fresh_until",
        "now >= entry.stale_until",
    ),
    Bug(
        "a hit extends the TTL",
        "cache",
        15,
        "entries.touch(query.text)",
        "entries.touch(query.text)\nif now < entry.fresh_until:\n    entry.fresh_until = now + 60",
    ),
    Bug(
        "jitter extends the TTL",
        "cache",
        24,
        "1 - limits.jitter * self._chance()",
        "1 + limits.jitter * self._chance()",
    ),
    Bug(
        "not found has the TTL of found users",
        "chain",
        15,
        "cache.limits.negative_ttl",
        "cache.limits.ttl",
    ),
    Bug(
        "a degraded answer has the normal TTL",
        "cache",
        18,
        "min(ttl, limits.degraded_ttl) if answer.degraded else ttl",
        "ttl",
    ),
    Bug(
        "an answer computed before a purge is stored",
        "single_flight",
        13,
        "self._find(query) is call",
        "True",
    ),
    Bug(
        "a lookup started before a purge is joined",
        "single_flight",
        6,
        "call.purges == self._cache.purges",
        "True",
    ),
    Bug("each caller starts a lookup", "single_flight", 0, "self._find(query) or", "None or"),
    Bug("a purge of everything keeps found users", "cache", 3, "self._found.clear()", "None"),
    Bug(
        "a purge of a user keeps the other entry",
        "cache",
        19,
        "self._found.drop_user(query.text)",
        "self._found.pop(query.text, None)",
    ),
    Bug("a purge keeps not found", "cache", 19, "self._negative.clear()", "None"),
    Bug(
        "a purge of a backend keeps fresh answers",
        "cache",
        0,
        "self._negative.find(text)\n        if entry is None or entry.epoch.expired",
        "self._negative.find(text)\nif entry is None",
    ),
    Bug(
        "a purge of a backend keeps stale answers",
        "cache",
        0,
        "self._found.get(query.text)\n        if entry is None or entry.epoch.expired",
        "self._found.get(query.text)\nif entry is None",
    ),
    Bug(
        "a stale answer never expires",
        "cache",
        24,
        "stale_until += limits.stale_if_error",
        "stale_until += 1e9",
    ),
    Bug(
        "a stale answer is not marked",
        "cache",
        15,
        "replace(entry.answer, stale=True)",
        "entry.answer",
    ),
    Bug(
        "not found is served stale",
        "cache",
        21,
        "self._found.get(query.text)",
        "self._found.get(query.text) or self._negative.get(query.text)",
        "others.pop(text, None)",
        "others.pop(text, None)\nif not answer.found:\n    stale_until += limits.stale_if_error",
    ),
    Bug("a found answer outlives a later not found", "cache", 12, "others.pop(text, None)", "None"),
    Bug(
        "a memoized failure is reported as not found",
        "single_flight",
        1,
        "self._settle(future, query, failure)",
        "self._settle(future, query, Answer(None, since=self._cache.timer(), body=b'absent'))",
    ),
    Bug(
        "a failure is not memoized",
        "cache",
        10,
        "self._failures[query.text] = error.copy()",
        "pass",
    ),
    Bug(
        "a failed refresh drops the answer",
        "cache",
        3,
        "self._failures[query.text] = error.copy()",
        "self._found.pop(query.text, None)\nself._failures[query.text] = error.copy()",
    ),
    Bug(
        "a caller that leaves cancels the lookup",
        "single_flight",
        0,
        "call.waiters.append(future)",
        "call.waiters.append(future)\n"
        "stop = lambda done: done.cancelled() and call.task.cancel()\n"
        "future.add_done_callback(stop)",
    ),
    Bug(
        "an open breaker is reported as not known",
        "guard",
        3,
        "wait = self.breaker.next_probe",
        "return None",
    ),
    Bug(
        "a timeout is reported as not known",
        "guard",
        0,
        'raise Unavailable(f"no answer within {self._timeout:g} s") from None',
        "return None",
    ),
    Bug(
        "a cancellation is reported as not known",
        "guard",
        23,
        'raise Broken("its own work was cancelled") from None',
        "return None",
    ),
    Bug(
        "an unexpected error is reported as not known",
        "guard",
        8,
        'raise Broken(f"failed with {type(error).__name__}") from error',
        "return None",
    ),
    Bug(
        "another user than requested is accepted",
        "guard",
        3,
        'query.text not in (f"@{user.nickname}", user.card_number)',
        "False",
    ),
    Bug(
        "a broken backend is skipped",
        "guard",
        26,
        "self._may_skip and isinstance(error, Unavailable)",
        "self._may_skip",
    ),
    Bug(
        "not known counts as a failure",
        "guard",
        2,
        "report = self.breaker.succeeded",
        "report = self.breaker.succeeded if answer else self.breaker.failed",
    ),
    Bug("a bulkhead permit is not released", "guard", 0, "self._bulkhead.release()", "None"),
    Bug(
        "an open circuit never lets a probe through",
        "circuit_breaker",
        4,
        "self._probing or self._timer() < self._open_until",
        "self._open_until",
    ),
    Bug("not found although a backend was skipped", "chain", 0, "raise skipped", "pass"),
    Bug(
        "a backend that must not be skipped is skipped", "chain", 4, "not error.continues", "False"
    ),
    Bug(
        "an answer after a skipped backend is not degraded",
        "chain",
        18,
        "answer.degraded or skipped is not None",
        "answer.degraded",
    ),
    Bug(
        "a change keeps answers of later backends",
        "directory",
        0,
        "names[names.index(changed) :]",
        "[changed]",
    ),
    Bug("a query without backends is reported as not found", "chain", 14, "not calls", "False"),
    Bug(
        "negative TTLs of backends are ignored",
        "chain",
        18,
        "min(ttls, default=default)",
        "default",
    ),
    Bug(
        "the backends are called in reverse",
        "directory",
        1,
        "for each in backends\n        ]",
        "for each in reversed(backends)\n        ]",
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
