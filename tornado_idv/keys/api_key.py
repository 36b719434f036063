"""The record of one key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tornado_idv.errors import InvalidKey
from tornado_idv.units import Rate

Scope = Literal["identify:url", "identify:card", "admin"]
KEY_ID = "[A-Za-z0-9.-]{1,64}"
"""The form of a key's id."""
DEFAULT_SCOPES: tuple[Scope, ...] = ("identify:url", "identify:card")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key. ``id`` is public; ``digest`` is the SHA-256 of the token.

    ``not_before`` and ``expires`` are Unix times in seconds, infinite without a limit.
    ``requests`` and ``misses`` are limits of its own, used instead of the general ones.
    ``rejected`` is why the key is not valid at any time; ``expires`` is then ``-math.inf``.
    """

    id: str
    digest: bytes = field(repr=False)
    owner: str = ""
    scopes: frozenset[Scope] = frozenset(DEFAULT_SCOPES)
    not_before: float = -math.inf
    expires: float = math.inf
    requests: Rate | None = None
    misses: Rate | None = None
    misses_log_only: bool = False
    rejected: str | None = None

    def check(self, now: float) -> None:
        """Raise `InvalidKey` unless the key is valid at ``now``, a Unix time."""
        if not self.not_before <= now < self.expires:
            too_late = "expired" if now >= self.expires else "not valid yet"
            raise InvalidKey(self.rejected or too_late, key_id=self.id or None)
