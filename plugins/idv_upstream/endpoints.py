"""Which of an upstream's endpoints is asked next.

Pure: it is told how they fared, and knows neither requests nor connections.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tornado_idv import Unavailable

_log = logging.getLogger(__name__)

_REST = 5.0
_LONGEST_WAIT = 60.0


class Endpoint:
    """One place where the directory answers; times are those of the endpoints' timer."""

    __slots__ = ("address", "rests_until", "waits_until")

    def __init__(self, address: str) -> None:
        self.address = address
        self.rests_until = 0.0
        """It failed: the others are preferred until then; 0 if all is well."""
        self.waits_until = 0.0
        """It asked to be left alone until then, and is; 0 if it did not."""


class Endpoints:
    """Prefers them in the order given; the first is taken again when its rest is over.

    An endpoint alone never rests: there is no other, and the breaker of the backend
    is there for it.
    """

    def __init__(
        self, addresses: Sequence[str], name: str, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._all = [Endpoint(address) for address in addresses]
        self._name = name
        self._timer = timer

    def pick(self, but: Endpoint | None = None) -> Endpoint:
        """The first that does not rest, else the one whose rest ends first.

        One that failed just now (``but``) is taken only if there is no other. Raises
        `Unavailable` if all of them asked to wait.
        """
        first = self._all[0]
        if first is not but and not first.rests_until and not first.waits_until:
            return first  # as nearly always
        now = self._timer()
        ready = [each for each in self._all if each.waits_until <= now]
        for each in ready:
            each.waits_until = 0.0
        if not ready:
            raise Unavailable("not asked: it asked to wait", counts_against_breaker=False)
        others = [each for each in ready if each is not but] or ready
        chosen = next((each for each in others if each.rests_until <= now), None)
        if chosen is None:
            return min(others, key=lambda each: each.rests_until)
        if chosen.rests_until:
            # Its rest is over. Until it has answered, the others stay with those that do.
            chosen.rests_until = now + _REST
        return chosen

    def failed(self, endpoint: Endpoint) -> None:
        """It could not be reached, or says it cannot serve."""
        if len(self._all) == 1:
            return
        if not endpoint.rests_until:
            _log.warning("backend %s: %s fails, and rests", self._name, endpoint.address)
        endpoint.rests_until = self._timer() + _REST

    def answered(self, endpoint: Endpoint) -> None:
        """It serves."""
        if endpoint.rests_until:
            endpoint.rests_until = 0.0
            _log.info("backend %s: %s answers again", self._name, endpoint.address)

    def told_to_wait(self, endpoint: Endpoint, seconds: float) -> None:
        """It asked to be left alone for so long; of that, a minute is granted."""
        endpoint.waits_until = self._timer() + min(seconds, _LONGEST_WAIT)
