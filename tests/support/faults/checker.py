"""Whether an answer was right: all that a caller may be told, held against the truth."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from support.faults.client import Person
from support.faults.fault_catalogue import Trouble
from support.faults.reference import Truth

Verdict = Literal["fresh", "stale", "404", "503", "422", "wrong"]


@dataclass(frozen=True)
class Times:
    """Seconds that a service is configured with, and ``lag``, by which it sees an edit.

    ``ttl`` is that of users of whom it learns by asking. Where it sees edits, ``seen_ttl``
    is no excuse for an answer from before one.
    """

    ttl: float = 1.0
    seen_ttl: float = 10.0
    negative_ttl: float = 0.3
    stale: float = 20.0
    timeout: float = 1.0
    lag: float = 2.5


@dataclass
class Episode:
    """A trouble from before it came until after its traces were gone."""

    trouble: Trouble
    begun: float
    lifted: float = math.inf
    recovered: float = math.inf


@dataclass(frozen=True)
class Asked:
    """A question, whom it names (``None``: it is in no valid form), and when it was asked."""

    text: str
    person: Person | None
    begun: float


@dataclass(frozen=True)
class Told:
    """An answer, and when it was there; ``status`` 0 is none at all."""

    status: int
    body: bytes
    retry_after: str | None
    ended: float

    @property
    def code(self) -> str | None:
        """Of an error record."""
        try:
            record = json.loads(self.body)
        except ValueError:
            return None
        return record.get("code") if isinstance(record, dict) else None


@dataclass
class Judge:
    """Knows what was true, and what was out of order when.

    Of the files with these letters the service learns by asking; it sees all others change,
    and then forgets what it knew of them.
    """

    truth: Truth
    times: Times
    unseen: str
    episodes: list[Episode] = field(default_factory=list)

    def verdict(self, asked: Asked, told: Told) -> Verdict:
        """What the answer was; *wrong* is one that may not be given."""
        if asked.person is None:
            right = (told.status, told.code) == (422, "invalid_format")
            return "422" if right else "wrong"
        if told.status == 200:
            return self._found(asked, asked.person, told)
        if told.status == 404 and told.code == "not_found":
            return "404" if self._may_be_absent(asked, asked.person, told) else "wrong"
        if told.status == 503 and told.code == "backend_unavailable" and told.retry_after:
            return "503"
        return "wrong"

    def _found(self, asked: Asked, person: Person, told: Told) -> Verdict:
        """The record asked for, with a plan that may still be answered."""
        plan = json.loads(told.body).get("plan")
        troubled = self._trouble_between(asked.begun, told.ended)
        since = self._oldest(asked.begun, person, troubled) - self.times.lag
        same = told.body == Person(person.nickname, person.card, plan).body
        if not (same and self.truth.was(person.nickname, plan, since, told.ended)):
            return "wrong"
        blind = any(
            each.trouble.blind and person.nickname.startswith(each.trouble.letter)
            for each in troubled
            if asked.begun < each.lifted
        )
        is_true = self.truth.was(person.nickname, plan, told.ended, told.ended)
        return "fresh" if is_true and not blind else "stale"

    def _oldest(self, begun: float, person: Person, troubled: list[Episode]) -> float:
        """The time of the oldest truth that may be remembered."""
        if person.nickname[0] not in self.unseen:
            return min([begun, *(each.begun for each in troubled)])
        return begun - self.times.ttl - (self.times.stale if troubled else 0)

    def _may_be_absent(self, asked: Asked, person: Person, told: Told) -> bool:
        """True within the negative time to live, and not made up while nobody could tell."""
        remembered = self.times.negative_ttl + self.times.timeout
        made_up = any(
            each.trouble.blind
            and each.begun + remembered < asked.begun
            and told.ended < each.lifted
            for each in self.episodes[-1:]
        )
        since = asked.begun - self.times.negative_ttl - self.times.lag
        return not made_up and self.truth.was(person.nickname, None, since, told.ended)

    def _trouble_between(self, since: float, until: float) -> list[Episode]:
        """Those of the time; the traces of one may be met for a moment after it."""
        grace = 2 * self.times.timeout
        return [
            each
            for each in self.episodes[-2:]
            if each.begun <= until and since <= each.recovered + grace
        ]


@dataclass
class Tally:
    """One row of the table."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    worst_latency: float = 0.0
    recovery: float = 0.0

    def add(self, verdict: Verdict, latency: float) -> None:
        """One more answer, which took this many seconds."""
        self.verdicts[verdict] += 1
        self.worst_latency = max(self.worst_latency, latency)
