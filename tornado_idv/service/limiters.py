"""The rate limits of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pluggy

from tornado_idv.config.settings import LimitSettings, Settings
from tornado_idv.limits.failed_auth import FailedAuthLimiter
from tornado_idv.limits.key_limits import KeyLimiter
from tornado_idv.limits.limit_exchange import LimitExchange
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import installed_kinds, load_class


@dataclass(frozen=True, slots=True)
class Limiters:
    """The rate limits, in memory that processes forked later share.

    ``exchange`` is the exchange of this process with other machines, if there is one.
    """

    keys: KeyLimiter
    failed_auth: FailedAuthLimiter
    exchange: LimitExchange | None = None

    def configure(self, limits: LimitSettings) -> None:
        """Apply the settings; what was counted under equal ones stays counted."""
        misses = limits.misses
        self.keys.configure(
            limits.requests,
            misses.rate if misses else None,
            misses_log_only=misses is not None and misses.log_only,
        )
        self.failed_auth.configure(limits.failed_auth)


def make_limiters(limits: LimitSettings) -> Limiters:
    """Return the limits, of which nothing is used up."""
    limiters = Limiters(KeyLimiter(), FailedAuthLimiter(None))
    limiters.configure(limits)
    return limiters


@asynccontextmanager
async def exchanging(
    limiters: Limiters, settings: Settings, manager: pluggy.PluginManager, counters: Counters
) -> AsyncIterator[Limiters]:
    """Yield the limits, exchanged with other machines if configured; raises `StartError`."""
    options = settings.shared_limits
    if options is None:
        yield limiters
        return
    shared = load_class(installed_kinds(manager).shared_limits[options.kind])(options)
    exchange = LimitExchange(shared, limiters.keys, counters)
    async with exchange.running():
        yield replace(limiters, exchange=exchange)
