"""The identity of a source of users, by which answers of different sources are never mixed up."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from pydantic import BaseModel, Secret, SecretBytes, SecretStr


def identity_of(*parts: object) -> bytes:
    """Return a digest of options, but of no password: the same after one is rotated.

    Other secrets count, since they may select whose data a source returns: store it as `sealed`
    alone. An option that a later version adds does not change it.
    """
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).digest()


@lru_cache(maxsize=16)
def sealed(identity: bytes) -> str:
    """Return what may be stored of an identity; it takes 50 ms, as does each guess of a secret."""
    return hashlib.scrypt(identity, salt=b"tornado-idv", n=2**14, r=8, p=1, dklen=32).hex()


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, Secret | SecretBytes | SecretStr):
        return repr(value.get_secret_value())
    if isinstance(value, set | frozenset):  # in any order
        return sorted(json.dumps(each, default=_plain) for each in value)
    return repr(value)
