"""Record of a key in the key store: its attributes, and one or more tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from tornado_idv.keys.api_key import DEFAULT_SCOPES, ApiKey, Scope, never_after, never_before
from tornado_idv.units import Rate

MAX_TEXT = 200
"""Characters of an owner or a note, at most."""

State = Literal["valid", "not valid yet", "expired", "disabled", "revoked"]


_scope_set = lru_cache(maxsize=64)(frozenset[Scope])
"""Keys with the same scopes share a set, which saves 200 bytes for each key."""


class Token(Struct, frozen=True, gc=False):
    """The SHA-256 of a token, and when it expires before its key does; in Unix time."""

    digest: bytes
    created: float
    expires: float | None = None

    def __repr__(self) -> str:
        """Return nothing of the digest."""
        return f"Token(created={self.created}, expires={self.expires})"


class KeyRecord(Struct, frozen=True, gc=False):
    """A key of the store; times are Unix times in seconds, ``None`` where there is none.

    ``tokens`` are in the order in which they were created.
    """

    id: str
    created: float
    tokens: tuple[Token, ...]
    owner: str = ""
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    not_before: float | None = None
    expires: float | None = None
    requests: Rate | None = None
    misses: Rate | None = None
    note: str = ""
    disabled: bool = False
    revoked: float | None = None
    last_used: float | None = None

    @property
    def valid_until(self) -> float:
        """When the last of its tokens expires, or the key itself; infinite without a limit."""
        return min(_limit(self.expires), max(_limit(token.expires) for token in self.tokens))

    def state(self, now: float) -> State:
        """Return whether the key is valid at ``now``, or why not."""
        if self.revoked is not None:
            return "revoked"
        if self.disabled:
            return "disabled"
        if now >= self.valid_until:
            return "expired"
        return "valid" if self.not_before is None or now >= self.not_before else "not valid yet"

    def api_keys(self) -> Iterator[ApiKey]:
        """Yield the key as it is authenticated by each of its tokens."""
        rejected = "revoked" if self.revoked is not None else "disabled" if self.disabled else None
        for token in self.tokens:
            expires = min(_limit(self.expires), _limit(token.expires))
            yield ApiKey(
                self.id,
                token.digest,
                self.owner,
                _scope_set(self.scopes),
                never_before() if self.not_before is None else self.not_before,
                never_before() if rejected else expires,  # always expired
                self.requests,
                self.misses,
                rejected=rejected,
            )


def in_order(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """Return tokens in the order of a `KeyRecord`."""
    return tuple(sorted(tokens, key=lambda token: (token.created, token.digest)))


def check_text(text: str) -> str:
    """Return an owner or a note; raises `ValueError` unless it is one short, printable line."""
    if len(text) > MAX_TEXT or not text.isprintable():
        raise ValueError(f"must be at most {MAX_TEXT} printable characters")
    return text


def _limit(expires: float | None) -> float:
    return never_after() if expires is None else expires
