"""The record of one key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tornado_idv.errors import InvalidKey
from tornado_idv.units import Rate

Scope = Literal["identify:url", "identify:card", "admin"]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key. ``id`` is public; ``digest`` is the SHA-256 of the token.

    ``not_before`` and ``expires`` are Unix times in seconds; ``None`` means no limit.
    ``requests`` and ``misses`` are limits of its own, used instead of the general ones.
    """

    id: str
    digest: bytes = field(repr=False)
    owner: str = ""
    scopes: frozenset[Scope] = frozenset({"identify:url", "identify:card"})
    not_before: float | None = None
    expires: float | None = None
    requests: Rate | None = None
    misses: Rate | None = None
    misses_log_only: bool = False

    def is_valid(self, now: float) -> bool:
        """Return whether the key is valid at ``now``, a Unix time."""
        return (self.not_before is None or now >= self.not_before) and (
            self.expires is None or now < self.expires
        )

    def check(self, now: float) -> None:
        """Raise `InvalidKey` unless the key is valid at ``now``."""
        if self.not_before is not None and now < self.not_before:
            raise InvalidKey("not valid yet", key_id=self.id)
        if self.expires is not None and now >= self.expires:
            raise InvalidKey("expired", key_id=self.id)
