"""The rows of the key store: records to columns and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args

from tornado_idv.keys.api_key import KEY_ID, ApiKey, Scope
from tornado_idv.keys.record import KeyRecord, Token, in_order
from tornado_idv.units import format_rate, parse_rate

API_KEY_COLUMNS = (
    "id, digest, tokens.expires, owner, scopes, not_before, keys.expires, requests, misses, "
    "disabled, revoked"
)
"""What `to_api_key` takes of ``tokens`` and ``keys``."""
_SCOPES = frozenset(get_args(Scope))
_DIGEST_SIZE = 32


class Snapshot:
    """All keys of a store at one time, as they are authenticated by each of their tokens.

    ``keys`` are by the digests of the tokens. ``state`` is what a later read is compared with (see
    `KeyDatabase.changed_rows`).
    """

    def __init__(self, keys: Mapping[bytes, ApiKey], state: object) -> None:
        self.keys = keys
        self.state = state


EMPTY = Snapshot({}, None)
"""Nothing was read yet."""


def to_values(record: KeyRecord) -> tuple[Any, ...]:
    """Return the columns of a key."""
    rates = (record.requests, record.misses)
    return (
        record.id,
        record.created,
        record.owner,
        " ".join(record.scopes),
        record.not_before,
        record.expires,
        *(rate and format_rate(rate) for rate in rates),
        record.note,
        record.disabled,
        record.revoked,
    )


@lru_cache(maxsize=64)
def _parse_scopes(text: str) -> tuple[Any, ...]:
    """Return scopes; raises `ValueError` for what we did not write."""
    scopes = tuple(text.split())
    if not scopes or not _SCOPES.issuperset(scopes):
        raise ValueError("not scopes")
    return scopes


def to_record(row: Sequence[Any], tokens: tuple[Token, ...]) -> KeyRecord:
    """Return the key of a row; raises `ValueError` or `TypeError` for what we did not write."""
    key_id, created, owner, scopes, not_before, expires, requests, misses, *more = row
    note, disabled, revoked, last_used = more
    if not re.fullmatch(KEY_ID, key_id, re.ASCII):
        raise ValueError("not an id")
    if not tokens or any(len(token.digest) != _DIGEST_SIZE for token in tokens):
        raise ValueError("not a digest")
    times = [created, not_before, expires, revoked, last_used]
    times += [each for token in tokens for each in (token.created, token.expires)]
    if not all(each is None or isinstance(each, float) for each in times):
        raise ValueError("not a time")
    return KeyRecord(
        key_id,
        created,
        in_order(tokens),
        owner,
        _parse_scopes(scopes),
        not_before,
        expires,
        requests and parse_rate(requests),
        misses and parse_rate(misses),
        note,
        bool(disabled),
        revoked,
        last_used,
    )


def to_api_key(row: Sequence[Any]) -> ApiKey:
    """Return the key of `API_KEY_COLUMNS`; raises `ValueError` or `TypeError` as `to_record`."""
    key_id, token_digest, token_expires, *columns, disabled, revoked = row
    token = Token(token_digest, 0.0, token_expires)
    record = to_record((key_id, 0.0, *columns, "", disabled, revoked, None), (token,))
    (key,) = record.api_keys()
    return key
