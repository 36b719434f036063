"""The record of one key."""

import re
from math import inf
from typing import Literal

from msgspec import Struct

from tornado_idv.units import Rate

Scope = Literal["identify:url", "identify:card", "admin"]
KEY_ID = re.compile("[A-Za-z0-9.-]{1,64}", re.ASCII)
"""Pattern of a key's id."""
DEFAULT_SCOPES: tuple[Scope, ...] = ("identify:url", "identify:card")


class ApiKey(Struct, frozen=True, gc=False):
    """An API key. ``id`` is public; ``digest`` is the SHA-256 of the token.

    ``not_before`` and ``expires`` are Unix times in seconds. ``requests`` and ``misses`` replace
    the general rate limits. ``rejected`` is ``revoked``, ``disabled`` or ``None``. If it is not
    ``None``, ``expires`` is minus infinity, so the key is never valid.

    The garbage collector does not track keys (``gc=False``), because it would stop the event loop
    for 0.1 s during a read of 50,000 keys (CPython 3.11).
    """

    id: str
    digest: bytes
    owner: str = ""
    scopes: frozenset[Scope] = frozenset(DEFAULT_SCOPES)
    not_before: float = -inf
    expires: float = inf
    requests: Rate | None = None
    misses: Rate | None = None
    rejected: str | None = None

    def __repr__(self) -> str:
        """Return only the id, so no traceback brings a digest into a log."""
        return f"ApiKey({self.id!r})"

    def is_valid(self, now: float) -> bool:
        """Return whether the key is valid at ``now``, a Unix time."""
        return self.not_before <= now < self.expires
