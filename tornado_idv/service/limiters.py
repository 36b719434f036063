"""The rate limits of a service."""

from __future__ import annotations

from tornado_idv.config.settings import LimitSettings
from tornado_idv.limits.failed_auth import FailedAuthLimiter
from tornado_idv.limits.key_limits import KeyLimiter


class Limiters:
    """The rate limits, in memory shared with processes forked later."""

    def __init__(self, limits: LimitSettings) -> None:
        self.keys = KeyLimiter()
        self.failed_auth = FailedAuthLimiter()
        self.configure(limits)

    def configure(self, limits: LimitSettings) -> None:
        """Apply the settings. The counts of unchanged limits are kept."""
        misses = limits.misses
        self.keys.configure(limits.requests, misses.limit if misses else None)
        self.failed_auth.configure(limits.failed_auth)
