"""Bugs that the state machine must find, each a lie that a cache or a chain can tell."""

from __future__ import annotations

import logging

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.model.lookup_machine import Lookups
from support.model.mutants import Bug, core

BUGS = (
    Bug(
        "a found user is fresh past the TTL",
        "cache",
        "if now >= entry.fresh_until:",
        "if now >= entry.stale_until:",
    ),
    Bug(
        "a hit extends a life",
        "cache",
        "        if now >= entry.refresh_at:\n",
        "        if now < entry.fresh_until:\n            entry.fresh_until = now + 60\n"
        "        if now >= entry.refresh_at:\n",
    ),
    Bug(
        "jitter goes upward",
        "cache",
        "(1 - limits.jitter * self._chance())",
        "(1 + limits.jitter * self._chance())",
    ),
    Bug(
        "not found lasts as long as found",
        "directory",
        "                cache.limits.negative_ttl,",
        "                cache.limits.ttl,",
    ),
    Bug(
        "a degraded answer lasts as long as a whole one",
        "cache",
        "return min(ttl, limits.degraded_ttl) if answer.degraded else ttl",
        "return ttl",
    ),
    Bug(
        "an answer begun before a purge is stored",
        "single_flight",
        "            if call.current:\n                self._on_answer(",
        "            if call is not None:\n                self._on_answer(",
    ),
    Bug(
        "a flight from before a purge is joined",
        "single_flight",
        "        self._calls.clear()\n",
        "",
    ),
    Bug(
        "each caller asks anew",
        "single_flight",
        "        running = self._calls.get(query.text)\n",
        "        running = None\n",
    ),
    Bug(
        "a purge of everything leaves what was found",
        "cache",
        "        self._found.clear()\n",
        "",
    ),
    Bug(
        "a purge of a user leaves the other entry",
        "cache",
        "self._found.drop_user(query)",
        "self._found.drop(query.text)",
    ),
    Bug(
        "a purge of a user leaves not found",
        "cache",
        "        self._found.drop_user(query)\n        self._clear_negative()\n",
        "        self._found.drop_user(query)\n        self._failures.clear()\n"
        "        self._single_flight.detach_all()\n",
    ),
    Bug(
        "not found survives a change",
        "cache",
        "            epoch.expired = True\n        self._clear_negative()\n",
        "            epoch.expired = True\n        self._failures.clear()\n"
        "        self._single_flight.detach_all()\n",
    ),
    Bug(
        "a fresh answer survives a change",
        "cache",
        "if entry is None or entry.epoch.expired:\n            return None\n"
        "        now = self.timer()\n        if now >=",
        "if entry is None:\n            return None\n        now = self.timer()\n        if now >=",
    ),
    Bug(
        "a stale answer survives a change",
        "cache",
        "if entry is None or entry.epoch.expired:\n            return None\n"
        "        now = self.timer()\n        if now <",
        "if entry is None:\n            return None\n        now = self.timer()\n        if now <",
    ),
    Bug(
        "a stale answer is served for ever",
        "cache",
        "stale_until += limits.stale_if_error",
        "stale_until += 1e9",
    ),
    Bug(
        "a stale answer is not marked",
        "cache",
        "return replace(entry.answer, stale=True)",
        "return entry.answer",
    ),
    Bug(
        "not found is served stale",
        "cache",
        "        entry = self._found.get(query.text)\n",
        "        entry = self._found.get(query.text) or self._negative.get(query.text)\n",
        (
            (
                "            stale_until += limits.stale_if_error\n",
                "        stale_until += limits.stale_if_error\n",
            ),
        ),
    ),
    Bug(
        "a found answer outlives a later not found",
        "cache",
        "        others.drop(text)\n",
        "",
    ),
    Bug(
        "a remembered failure is told as not found",
        "cache",
        "settle(future, query, failure.copy(), finish)",
        "settle(future, query, Answer(None, since=self.timer(), body=b'absent'), finish)",
    ),
    Bug(
        "a failure is not remembered",
        "cache",
        "self._failures[query.text] = error",
        "_ = error",
    ),
    Bug(
        "a refresh that fails forgets the answer",
        "cache",
        "self._failures[query.text] = error",
        "self._found.drop(query.text)\n        self._failures[query.text] = error",
    ),
    Bug(
        "a caller who leaves ends the flight",
        "single_flight",
        "        return waiter.future\n",
        "        stop = lambda done: done.cancelled() and call.task.cancel()\n"
        "        waiter.future.add_done_callback(stop)\n"
        "        return waiter.future\n",
    ),
    Bug(
        "an open breaker is told as not known",
        "guard",
        'raise Unavailable(f"circuit breaker open, {probe}", counts_against_breaker=False)',
        "return None",
    ),
    Bug(
        "a time-out is told as not known",
        "guard",
        'raise Unavailable(f"no answer within {self._timeout:g} s") from None',
        "return None",
    ),
    Bug(
        "a cancellation is told as not known",
        "guard",
        'raise Broken("its own work was cancelled") from None',
        "return None",
    ),
    Bug(
        "an unforeseen error is told as not known",
        "guard",
        'raise Broken(f"failed with {type(error).__name__}") from error',
        "return None",
    ),
    Bug(
        "another user than asked for is believed",
        "guard",
        'raise Broken("returned another user than requested")',
        "return user",
    ),
    Bug(
        "a broken backend is passed over",
        "guard",
        "self._may_skip and isinstance(error, Unavailable)",
        "self._may_skip",
    ),
    Bug(
        "not known counts as a failure",
        "guard",
        "            report = self._breaker.succeeded\n        except LookupFailed as",
        "            report = self._breaker.succeeded if answer else self._breaker.failed\n"
        "        except LookupFailed as",
    ),
    Bug(
        "a place is not given back",
        "guard",
        "self._bulkhead.release()",
        "pass",
    ),
    Bug(
        "an open circuit stays open for ever",
        "circuit_breaker",
        "if self._probing or self._timer() < self._open_until:",
        "if self._open_until:",
    ),
    Bug(
        "the chain ends in not found though one was skipped",
        "directory",
        "        raise skipped\n    return Answer(",
        "        return Answer(None)\n    return Answer(",
    ),
    Bug(
        "the next is asked though the one before must not be skipped",
        "directory",
        "if not error.continues:",
        "if False:",
    ),
    Bug(
        "an answer after a skipped backend is taken for a whole one",
        "directory",
        "return answer if skipped is None else replace(answer, degraded=True)",
        "return answer",
    ),
    Bug(
        "a change leaves what later backends answered",
        "directory",
        "self._names[self._names.index(changed) :]",
        "[changed]",
    ),
    Bug(
        "nobody to ask is told as not found",
        "directory",
        'raise Unavailable(f"no backend answers {type(query).__name__}")',
        "pass",
    ),
    Bug(
        "the backends' own times of not found are ignored",
        "directory",
        "return min((default if each is None else each for each in own), default=default)",
        "return default",
    ),
    Bug(
        "the backends are asked in reverse",
        "directory",
        "ttl=cache.limits.ttl) for each in backends\n",
        "ttl=cache.limits.ttl) for each in reversed(backends)\n",
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
)


def hunt(bug: Bug | None) -> str:
    """What the state machine says of a core with this bug; nothing if it finds none."""
    logging.getLogger("tornado_idv").setLevel(logging.CRITICAL)
    machine = type("Mutated", (Lookups,), {"core": core(bug)})
    try:
        run_state_machine_as_test(machine, settings=_SEARCH)
    except AssertionError as error:
        return str(error) or type(error).__name__
    return ""
