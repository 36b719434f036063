"""Chooses the endpoint for a request, by how earlier requests fared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from idv_upstream.response.raw import MAX_RETRY_AFTER, Response, retry_after
from tornado_idv import Unavailable

GATEWAY_ERRORS = (502, 503, 504)
"""Statuses by which an endpoint has failed."""
_WITH_RETRY_AFTER = (429, 503)

_log = logging.getLogger(__name__)

_DOWN_TIME = 5.0


@dataclass(slots=True, eq=False)
class Endpoint:
    """One base URL of the upstream; times are those of the timer of `Endpoints`."""

    address: str
    down_until: float = 0.0
    """It failed, and others are preferred until then; 0 if it is up."""
    retry_after: float = 0.0
    """It sent ``Retry-After`` and is not used until then."""


class Endpoints:
    """Prefers endpoints in the order given; the first is used again when its down time is over.

    A single endpoint is never down: there is no other, and the backend has a circuit breaker.
    """

    def __init__(
        self, addresses: Sequence[str], name: str, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._all = [Endpoint(address) for address in addresses]
        self._name = name
        self._timer = timer

    def pick(self) -> Endpoint:
        """Return the first endpoint that is up, or else the one that was down first.

        Raises `Unavailable` if all of them sent ``Retry-After``.
        """
        first = self._all[0]
        if not first.down_until and not first.retry_after:
            return first  # nearly always
        now = self._timer()
        usable = [each for each in self._all if each.retry_after <= now]
        if not usable:
            raise Unavailable(
                "no request sent: its Retry-After has not passed",
                counts_against_breaker=False,
                retry_after=min(each.retry_after for each in self._all) - now,
            )
        chosen = next((each for each in usable if each.down_until <= now), None)
        if chosen is None:
            return min(usable, key=lambda each: each.down_until)
        if chosen.down_until:
            # One request probes it. Until it gets a response, the rest use another endpoint.
            chosen.down_until = now + _DOWN_TIME
        return chosen

    def record(self, endpoint: Endpoint, response: Response | None) -> None:
        """Record how a request to the endpoint fared; ``None`` if there is no whole response."""
        if response is None or response.status in GATEWAY_ERRORS:
            if not endpoint.down_until and len(self._all) > 1:
                text = "backend %s: endpoint %s failed; others are used, next probe in %g s"
                _log.warning(text, self._name, endpoint.address, _DOWN_TIME)
            if len(self._all) > 1:
                endpoint.down_until = self._timer() + _DOWN_TIME
        elif endpoint.down_until:
            endpoint.down_until = 0.0
            _log.info("backend %s: endpoint %s is up again", self._name, endpoint.address)
        if response is not None and response.status in _WITH_RETRY_AFTER:
            seconds = min(retry_after(response.headers), MAX_RETRY_AFTER)
            endpoint.retry_after = self._timer() + seconds
