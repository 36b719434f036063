"""Limits on what one client, and all clients together, may use."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

_RESERVED_DESCRIPTORS = 128
"""File descriptors kept for backends, files and the listening sockets."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes, seconds and connections."""

    max_body: int = 16 * 1024
    idle_timeout: float = 10.0
    body_timeout: float = 5.0
    max_connections: int = 4000

    def within_descriptors(self) -> HttpLimits:
        """Return these limits with ``max_connections`` lowered to what ``RLIMIT_NOFILE`` allows."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return self
        available = max(1, limit - _RESERVED_DESCRIPTORS)
        return replace(self, max_connections=min(self.max_connections, available))
