"""Check responses against the reference: the true state of the users at any time."""

import json
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from soak.fault_catalogue import Scenario
from soak.people import Person
from soak.reference import Reference

Outcome = Literal["fresh", "stale", "404", "503", "422", "wrong"]


@dataclass(frozen=True)
class Times:
    """The configured times of a service in seconds.

    ``lag`` is the maximum time until the service notices an edit. ``ttl`` is the cache time for
    users of an upstream, ``seen_ttl`` for sources whose edits the service notices. An edit ends
    ``seen_ttl``. ``timeout`` is for a request, ``backend_timeout`` for a call of a backend.
    """

    ttl: float = 1.0
    seen_ttl: float = 10.0
    negative_ttl: float = 0.3
    stale: float = 20.0
    timeout: float = 1.0
    backend_timeout: float = 0.4
    lag: float = 2.5


@dataclass
class Episode:
    """One run of a fault scenario, with its times. At ``recovered``, all effects have ended."""

    scenario: Scenario
    begun: float
    injected: float = math.inf
    lifted: float = math.inf
    recovered: float = math.inf


@dataclass(frozen=True)
class Request:
    """A request with its user, time and port. For an invalid format, ``person`` is ``None``."""

    text: str
    person: Person | None
    begun: float
    port: int = 0


@dataclass(frozen=True)
class Response:
    """A response with the time of its arrival. ``status`` 0 means no response."""

    status: int
    body: bytes
    retry_after: str | None
    ended: float

    @property
    def code(self) -> str | None:
        """The code of an error response."""
        try:
            record = json.loads(self.body)
        except ValueError:
            return None
        return record.get("code") if isinstance(record, dict) else None


@dataclass
class Checker:
    """Checks responses against the reference and the fault episodes.

    ``unseen`` has the letters of sources whose edits the service does not notice. ``unnotified``
    has the ports of processes that notice no edits at all. An edit of any other source purges its
    cached answers. With ``strict``, a 503 is wrong unless a fault affects the process. ``believed``
    is the ``max_age`` of the canary in seconds: for this time, a service trusts an emptied source.
    """

    reference: Reference
    times: Times
    unseen: str
    episodes: list[Episode] = field(default_factory=list)
    strict: bool = False
    unnotified: Collection[int] = ()
    believed: float = 0.0
    _failed: dict[int, float] = field(default_factory=dict)
    """The time of the last failed lookup in each process, by port."""

    def outcome(self, request: Request, response: Response) -> Outcome:
        """Return the class of a response. A service must never send a ``wrong`` response."""
        if response.status == 503 or response.ended - request.begun >= self.times.backend_timeout:
            self._failed[request.port] = response.ended
        if request.person is None:
            right = (response.status, response.code) == (422, "invalid_format")
            return "422" if right else "wrong"
        if response.status == 200:
            return self._found(request, request.person, response)
        if response.status == 404 and response.code == "not_found":
            return "404" if self._may_be_absent(request, request.person, response) else "wrong"
        if (
            response.status == 503
            and response.code == "backend_unavailable"
            and response.retry_after
        ):
            excused = not self.strict or self._episodes_of(request, response)
            return "503" if excused else "wrong"
        return "wrong"

    def context(self, request: Request) -> str:
        """Return the last episodes and the user's last plans, timed relative to the request."""
        now = request.begun
        episodes = [
            f"{each.scenario.name}: begun {each.begun - now:+.2f},"
            f" injected {each.injected - now:+.2f}, lifted {each.lifted - now:+.2f},"
            f" recovered {each.recovered - now:+.2f}"
            for each in self.episodes[-2:]
        ]
        name = request.person.nickname if request.person else ""
        plans = [f"{plan} from {at - now:+.2f} on" for plan, at in self.reference.plans(name)]
        return "; ".join([*episodes, *plans[-4:]])

    def _found(self, request: Request, person: Person, response: Response) -> Outcome:
        """Return the class of a 200 response. It must be the record of a permitted time."""
        plan = json.loads(response.body).get("plan")
        active = self._episodes_of(request, response)
        since = self._oldest(request, person, active) - self.times.lag
        same = response.body == Person(person.nickname, person.card, plan).body
        if not (same and self.reference.was(person.nickname, plan, since, response.ended)):
            return "wrong"
        blind = any(
            each.scenario.blind and person.nickname.startswith(each.scenario.letter)
            for each in active
            if request.begun < each.lifted
        )
        is_true = self.reference.was(person.nickname, plan, response.ended, response.ended)
        return "fresh" if is_true and not blind else "stale"

    def _oldest(self, request: Request, person: Person, active: list[Episode]) -> float:
        """Return the earliest time from which the data of a cached answer may be."""
        begun = request.begun
        if self._is_seen(request, person):
            return min([begun, *(each.begun for each in active)])
        # On a busy machine, lookups also fail without a fault: a call of the backend times out, and
        # a circuit breaker opens, or a Retry-After begins. Then both a stale answer and a 503 are
        # right. The evidence is a slow response, or a 503, to an earlier request.
        failed = (
            not self.strict and begun <= self._failed.get(request.port, -math.inf) + self._grace
        )
        return begun - self.times.ttl - (self.times.stale if active or failed else 0)

    @property
    def _grace(self) -> float:
        """The maximum time from a failure to the end of its effects, in seconds."""
        return 2 * self.times.timeout

    def _is_seen(self, request: Request, person: Person) -> bool:
        """Return whether the process notices edits of this user."""
        return request.port not in self.unnotified and person.nickname[0] not in self.unseen

    def _may_be_absent(self, request: Request, person: Person, response: Response) -> bool:
        """Return whether "not found" was true within the negative TTL, and could be determined."""
        cached = self.times.negative_ttl + self.times.timeout
        undetermined = any(
            each.scenario.blind
            and each.injected + cached + self.believed < request.begun
            and response.ended < each.lifted
            for each in self.episodes[-1:]
        )
        believed = self.believed > 0 and any(
            each.begun <= response.ended
            and request.begun <= min(each.injected + self.believed, each.lifted) + cached
            for each in self.episodes[-1:]
        )
        since = request.begun - self.times.negative_ttl - self.times.lag
        absent = self.reference.was(person.nickname, None, since, response.ended)
        return not undetermined and (believed or absent)

    def _episodes_of(self, request: Request, response: Response) -> list[Episode]:
        """Return the episodes that may affect a response, including a time for their effects."""
        return [
            each
            for each in self.episodes[-2:]
            if each.begun <= response.ended
            and request.begun <= each.recovered + self._grace
            and (each.scenario.affects is None or request.port in each.scenario.affects)
        ]


@dataclass
class Tally:
    """One row of the results table."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    worst_latency: float = 0.0
    recovery: float = 0.0
    delays: dict[str, float] = field(default_factory=dict)
    """The longest time until all processes followed a change, in seconds, by kind of change."""

    def add(self, outcome: Outcome, latency: float) -> None:
        """Count a response. ``latency`` is in seconds."""
        self.outcomes[outcome] += 1
        self.worst_latency = max(self.worst_latency, latency)
