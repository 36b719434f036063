"""The users, faults and journal of the test double."""

import random
import time
from collections import Counter, deque
from typing import Self

from tornado_idv.double.fault import Fault
from tornado_idv.log_format import format_time
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import ByCard, Query, User
from tornado_idv.service.part import Part, Running
from tornado_idv.web.access_log import AccessRecord, RequestLog

MAX_REQUESTS = 1000
"""Maximum length of the journal. When it is full, the oldest request is dropped."""
_CLOCK_TOLERANCE = 0.001
"""Maximum error of a request's start in seconds, because it is computed as end minus duration."""


class Double(RequestLog, Part):
    """The state of the test double: users, faults, and the journal of requests.

    The keys of ``users`` and ``faults`` are queries. The fault for all queries has the key
    ``None``. Users and faults of the double take precedence over users and faults of the backends.
    ``injected`` counts the uses of each fault.
    """

    name = "test double"

    def __init__(self) -> None:
        self._access_log: RequestLog | None = None
        self.reset()

    def log_before(self, log: RequestLog | None) -> Self:
        self._access_log = log
        return self

    def reset(self) -> None:
        """Discard users, faults, counts and the journal. Seed the random numbers again."""
        self.users: dict[Query, User] = {}
        self.faults: dict[Query | None, Fault] = {}
        self.injected = Counter[Fault]()
        self._reset_at = time.time()
        self.requests = deque[dict[str, object]](maxlen=MAX_REQUESTS)
        """The records of the journal, oldest first."""
        self._random = random.Random(0)  # noqa: S311 - repeatable on purpose

    def set_user(self, user: User, *queries: Query) -> None:
        """Add or replace the user for these queries."""
        self.remove_user(queries[0])
        self.users |= dict.fromkeys(queries, user)

    def remove_user(self, query: Query) -> bool:
        """Remove a user of the double. Return whether it existed."""
        user = self.users.get(query)
        self.users = {key: each for key, each in self.users.items() if each is not user}
        return user is not None

    def take_fault(self, query: Query, directory: Directory) -> Fault | None:
        """Return the fault that applies to this lookup, or ``None``. Count its use."""
        places = [self.faults, *(getattr(each.backend, "faults", {}) for each in directory.guards)]
        found = (each[key] for key in (query, None) for each in places if key in each)
        fault = next(found, None)
        if fault is None or (fault.times is not None and self.injected[fault] >= fault.times):
            return None
        if self._random.random() >= fault.probability:
            return None
        self.injected[fault] += 1
        return fault

    def subject_of(self, query: Query | None) -> str | None:
        """Return the identifier for the journal. `add` may hash or omit it for the access log."""
        return query.text if query else None

    def add(self, record: AccessRecord) -> None:
        """Add a request to the journal and to the access log.

        The journal ignores requests that began before the last `reset`.
        """
        text = record.subject
        at = time.time()
        if at - record.ms / 1000 > self._reset_at - _CLOCK_TOLERANCE:
            shown: dict[str, object] = {
                "timestamp": format_time(at),
                "method": record.method,
                "route": record.route,
                "query": text,
                "status": record.status,
                "code": record.code,
                "key": record.key,
                "request_id": record.request_id,
            }
            self.requests.append(shown)
        if self._access_log is not None:
            # The access log only uses the text of a query, so any kind of query will do.
            record.subject = self._access_log.subject_of(ByCard(text)) if text is not None else None
            self._access_log.add(record)


def make_part(running: Running) -> Double | None:
    """Return the test double, or ``None`` outside of demo mode."""
    return Double() if running.settings.demo else None
