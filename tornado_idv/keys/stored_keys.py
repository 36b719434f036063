"""All keys of a key store, in the form that authentication needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, get_args

from tornado_idv.keys.api_key import KEY_ID, ApiKey, Scope
from tornado_idv.units import parse_rate

API_KEY_COLUMNS = (
    "id, digest, tokens.expires, owner, scopes, not_before, keys.expires, requests, misses, "
    "disabled, revoked"
)
"""The columns of ``tokens`` and ``keys`` that `to_api_key` converts."""
_SCOPES = frozenset(get_args(Scope))
_DIGEST_SIZE = 32

_scope_set = lru_cache(maxsize=64)(frozenset[Scope])
"""Makes keys with the same scopes share one set. This saves 200 bytes for each key."""


@dataclass(frozen=True, repr=False, slots=True)
class StoredKeys:
    """All keys of a store at one time, one for each token.

    ``keys`` maps the digest of each token to its key. ``revision`` is the revision of the store.
    The next read needs ``state`` to find changes (see `KeyDatabase.changed_rows`).
    """

    keys: Mapping[bytes, ApiKey]
    revision: str | None
    state: object


EMPTY = StoredKeys({}, None, None)
"""The snapshot before the first read."""


@lru_cache(maxsize=64)
def parse_scopes(text: str) -> tuple[Any, ...]:
    """Parse scopes separated by spaces. Raises `ValueError` for invalid text."""
    scopes = tuple(text.split())
    if not scopes or not _SCOPES.issuperset(scopes):
        raise ValueError("not scopes")
    return scopes


def check_row(key_id: str, digests: Iterable[bytes], times: Iterable[object]) -> None:
    """Raise `ValueError` or `TypeError` for invalid values in a row of the key store."""
    if not KEY_ID.fullmatch(key_id):
        raise ValueError("not an id")
    if any(len(each) != _DIGEST_SIZE for each in digests):
        raise ValueError("not a digest")
    if not all(each is None or isinstance(each, float) for each in times):
        raise ValueError("not a time")


def to_api_key(row: Sequence[Any]) -> ApiKey:
    """Convert a row of `API_KEY_COLUMNS` to a key. Raises `ValueError` or `TypeError`."""
    key_id, digest, token_expires, owner, scopes, not_before, expires, *more = row
    requests, misses, disabled, revoked = more
    check_row(key_id, [digest], [token_expires, not_before, expires, revoked])
    rejected = "revoked" if revoked is not None else "disabled" if disabled else None
    ends = [inf if each is None else each for each in (token_expires, expires)]
    return ApiKey(
        key_id,
        digest,
        owner,
        _scope_set(parse_scopes(scopes)),
        -inf if not_before is None else not_before,
        -inf if rejected else min(ends),  # always expired
        requests and parse_rate(requests),
        misses and parse_rate(misses),
        rejected=rejected,
    )
