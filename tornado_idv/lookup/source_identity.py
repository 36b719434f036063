"""The identity of a source of users. It keeps answers of different sources apart."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from pydantic import BaseModel, Secret, SecretBytes, SecretStr


def identity_of(*parts: object) -> bytes:
    """Return a digest of options; a rotated `Password` does not change it.

    Other secrets may select the data of a source, so they count. Store the digest only as
    `sealed`. Options that later versions add do not change it.
    """
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).digest()


@lru_cache(maxsize=16)
def sealed(identity: bytes) -> str:
    """Return an identity as it is stored. This takes 50 ms, as does each guess of a secret."""
    return hashlib.scrypt(identity, salt=b"tornado-idv", n=2**14, r=8, p=1, dklen=32).hex()


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, Secret | SecretBytes | SecretStr):
        return repr(value.get_secret_value())
    if isinstance(value, set | frozenset):  # in any order
        return sorted(json.dumps(each, default=_plain) for each in value)
    return repr(value)
