"""The rate limits of a service."""

from __future__ import annotations

from dataclasses import dataclass

from tornado_idv.config.settings import LimitSettings
from tornado_idv.limits.failed_auth import FailedAuthLimiter
from tornado_idv.limits.key_limits import KeyLimiter


@dataclass(frozen=True, slots=True)
class Limiters:
    """The rate limits, in memory shared with processes forked later."""

    keys: KeyLimiter
    failed_auth: FailedAuthLimiter

    def configure(self, limits: LimitSettings) -> None:
        """Apply the settings. The counts of unchanged limits are kept."""
        misses = limits.misses
        self.keys.configure(
            limits.requests,
            misses.rate if misses else None,
            misses_log_only=misses is not None and misses.log_only,
        )
        self.failed_auth.configure(limits.failed_auth)


def make_limiters(limits: LimitSettings) -> Limiters:
    """Return limiters with these limits and with counts of zero."""
    limiters = Limiters(KeyLimiter(), FailedAuthLimiter(None))
    limiters.configure(limits)
    return limiters
