"""Limits on what one client, and all clients together, may use."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

_RESERVED_DESCRIPTORS = 192
"""File descriptors kept for backends, files, listening sockets, rejected connections and the
connections of the admin listener."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes, seconds and connections.

    ``keep_alive_timeout`` is the time between two requests, by default ``idle_timeout``. With
    ``replace_idle``, a connection above ``max_connections`` replaces the oldest one without a
    complete request, and is rejected only if there is none.
    """

    max_body: int = 16 * 1024
    idle_timeout: float = 10.0
    keep_alive_timeout: float | None = None
    body_timeout: float = 5.0
    max_connections: int = 4000
    replace_idle: bool = False

    def within_descriptors(self) -> HttpLimits:
        """Return these limits with ``max_connections`` lowered to what ``RLIMIT_NOFILE`` allows."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return self
        available = max(1, limit - _RESERVED_DESCRIPTORS)
        return replace(self, max_connections=min(self.max_connections, available))
