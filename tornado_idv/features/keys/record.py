"""A key of the key store with its tokens, and its conversion to and from a database row."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Literal

from msgspec import Struct

from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.keys.store import check_row, parse_scopes
from tornado_idv.units import Rate, format_rate, parse_rate

MAX_TEXT = 200
"""Maximum length of an owner or a note, in characters."""

State = Literal["valid", "not valid yet", "expired", "disabled", "revoked"]


class Token(Struct, frozen=True, gc=False):
    """The SHA-256, creation and expiry of a token. Without ``expires``, it expires with its key."""

    digest: bytes
    created: float
    expires: float | None = None

    @property
    def end(self) -> float:
        """The expiry, or infinity."""
        return inf if self.expires is None else self.expires

    def __repr__(self) -> str:
        """Return a representation without the digest."""
        return f"Token(created={self.created}, expires={self.expires})"


class KeyRecord(Struct, frozen=True, gc=False):
    """A key of the store. Times are Unix times in seconds, or ``None`` if not set.

    ``tokens`` are sorted by time of creation.
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
        """The Unix time when the key or its last token expires. If neither expires, infinity."""
        end = max(token.end for token in self.tokens)
        return end if self.expires is None else min(end, self.expires)

    def state(self, now: float) -> State:
        if self.revoked is not None:
            return "revoked"
        if self.disabled:
            return "disabled"
        if now >= self.valid_until:
            return "expired"
        return "valid" if self.not_before is None or now >= self.not_before else "not valid yet"


COLUMNS = tuple(each for each in KeyRecord.__struct_fields__ if each not in ("tokens", "last_used"))
"""The columns of the database table ``keys``."""
TIMES = ("not_before", "expires", "revoked", "last_used")
"""The times of a `KeyRecord` that may be ``None``."""


def in_order(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """Sort tokens by time of creation, as in a `KeyRecord`."""
    return tuple(sorted(tokens, key=lambda token: (token.created, token.digest)))


def check_text(text: str) -> str:
    """Return an owner or note unchanged. Raises `ValueError` unless it is short and printable."""
    if len(text) > MAX_TEXT or not text.isprintable():
        raise ValueError(f"must be at most {MAX_TEXT} printable characters")
    return text


def to_values(record: KeyRecord) -> tuple[Any, ...]:
    """Return the values of a key for `COLUMNS`."""
    values = {name: getattr(record, name) for name in COLUMNS}
    values |= {name: format_rate(values[name]) for name in ("requests", "misses") if values[name]}
    return tuple({**values, "scopes": " ".join(record.scopes)}.values())


def to_record(row: Sequence[Any], tokens: tuple[Token, ...]) -> KeyRecord:
    """Return the key in a database row. Raises `ValueError` or `TypeError` for an invalid row."""
    values = dict(zip((*COLUMNS, "last_used"), row, strict=True))
    times = [values[name] for name in ("created", *TIMES)]
    times += [each for token in tokens for each in (token.created, token.expires)]
    check_row(values["id"], [token.digest for token in tokens], times)
    if not tokens:
        raise ValueError("no token")
    values |= {name: parse_rate(values[name]) for name in ("requests", "misses") if values[name]}
    values |= {"scopes": parse_scopes(values["scopes"]), "disabled": bool(values["disabled"])}
    return KeyRecord(tokens=in_order(tokens), **values)
