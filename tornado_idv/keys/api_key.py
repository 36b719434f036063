"""The record of one key."""

from __future__ import annotations

import math
from math import copysign
from typing import Literal

from msgspec import Struct, field

from tornado_idv.errors import InvalidKey
from tornado_idv.keys.token import is_token68
from tornado_idv.units import Rate

Scope = Literal["identify:url", "identify:card", "admin"]
KEY_ID = "[A-Za-z0-9.-]{1,64}"
"""The form of a key's id."""
NO_SCHEME = "\0" * len("bearer")
"""The scheme of credentials that were not sent; a client cannot send it."""
NO_CREDENTIALS = f"{NO_SCHEME} 0123456789012345678901234567890123456789012345678"
"""In place of credentials that were not sent, and of the usual length: they take the same time."""
DEFAULT_SCOPES: tuple[Scope, ...] = ("identify:url", "identify:card")


def never_before() -> float:
    """Return minus infinity, as an object of its own.

    One that many keys share is in the processor's cache when theirs are not, and the time of a 401
    tells these keys from others by 0.1 µs (benchmarks/key_timing.py).
    """
    return float("-inf")


def never_after() -> float:
    """Return infinity, as an object of its own."""
    return float("inf")


class ApiKey(Struct, frozen=True, gc=False):
    """A key. ``id`` is public; ``digest`` is the SHA-256 of the token.

    ``not_before`` and ``expires`` are Unix times in seconds, infinite without a limit.
    ``requests`` and ``misses`` are limits of its own, used instead of the general ones.
    ``rejected`` is why the key is not valid at any time; ``expires`` is then
    minus infinity. All these times are objects of their own (see `never_before`).

    Like the records of the store, it is not tracked by the garbage collector (``gc=False``), which
    would stop the event loop for 0.1 s while 50,000 keys are read (CPython 3.11).
    """

    id: str
    digest: bytes
    owner: str = ""
    scopes: frozenset[Scope] = frozenset(DEFAULT_SCOPES)
    not_before: float = field(default_factory=never_before)
    expires: float = field(default_factory=never_after)
    requests: Rate | None = None
    misses: Rate | None = None
    misses_log_only: bool = False
    rejected: str | None = None

    def __repr__(self) -> str:
        """Return the id alone: no digest reaches a log through a traceback."""
        return f"ApiKey({self.id!r})"

    def is_valid(self, now: float, latest: float = -math.inf) -> bool:
        """Return whether the key is valid at ``now``, in a time that is the same for each outcome.

        ``latest`` is the latest time that was seen: a key that had expired by then stays expired.
        Both are Unix times.

        By signs: a comparison with the rarer outcome takes up to 0.1 µs longer, and the time of a
        401 would tell the reason (benchmarks/key_timing.py, CPython 3.11).
        """
        since_start = copysign(1.0, now - self.not_before)
        since_end = copysign(1.0, max(now, latest) - self.expires)
        return since_start > since_end


class RejectedKey(InvalidKey):
    """A token that was rejected at ``now``, a Unix time, and the key it was compared with.

    ``scheme`` and ``token`` are what was sent; the scheme is `NO_SCHEME` if there was nothing.

    The reason is derived when it is read, after the response was sent, so that its time does not
    tell the reason. The digests are compared at once, so that an unknown token takes the time of
    a known one, whose digest the lookup has compared.
    """

    def __init__(self, key: ApiKey, now: float, digest: bytes, scheme: str, token: str) -> None:
        super().__init__("rejected")
        self._scheme = scheme
        self._token = token
        self._key = key
        self._now = now
        self._is_known = digest == key.digest

    @property
    def is_well_formed(self) -> bool:
        """The token could be that of a key."""
        return self._scheme == "bearer" and is_token68(self._token)

    @property
    def reason(self) -> str:
        """Unknown, unless the token is that of the key, or none."""
        if self._scheme == NO_SCHEME:
            return "missing"
        if not self.is_well_formed:
            return "malformed"
        if not self._is_known:
            return "unknown"
        is_expired = self._now >= self._key.expires
        return self._key.rejected or ("expired" if is_expired else "not valid yet")

    @property
    def key_id(self) -> str | None:
        """The id of the key, if the token is its own."""
        return self._key.id if self._is_known else None
