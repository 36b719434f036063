"""The record of one key."""

from __future__ import annotations

from math import inf
from typing import Literal

from msgspec import Struct

from tornado_idv.units import Rate

Scope = Literal["identify:url", "identify:card", "admin"]
KEY_ID = "[A-Za-z0-9.-]{1,64}"
"""The form of a key's id."""
DEFAULT_SCOPES: tuple[Scope, ...] = ("identify:url", "identify:card")


class ApiKey(Struct, frozen=True, gc=False):
    """A key. ``id`` is public; ``digest`` is the SHA-256 of the token.

    ``not_before`` and ``expires`` are Unix times in seconds, infinite without a limit.
    ``requests`` and ``misses`` are limits of its own, used instead of the general ones.
    ``rejected`` is why the key is not valid at any time; ``expires`` is then minus infinity.

    Like the records of the store, it is not tracked by the garbage collector (``gc=False``), which
    would stop the event loop for 0.1 s while 50,000 keys are read (CPython 3.11).
    """

    id: str
    digest: bytes
    owner: str = ""
    scopes: frozenset[Scope] = frozenset(DEFAULT_SCOPES)
    not_before: float = -inf
    expires: float = inf
    requests: Rate | None = None
    misses: Rate | None = None
    misses_log_only: bool = False
    rejected: str | None = None

    def __repr__(self) -> str:
        """Return the id alone: no digest reaches a log through a traceback."""
        return f"ApiKey({self.id!r})"

    def is_valid(self, now: float) -> bool:
        """Return whether the key is valid at ``now``, a Unix time."""
        return self.not_before <= now < self.expires
