"""The identity of a source of users. It keeps answers of different sources apart."""

import hashlib
import json
from functools import lru_cache

from pydantic import BaseModel, Secret, SecretBytes, SecretStr


def identity_of(*parts: object) -> bytes:
    """Return a digest of options, to detect changes. It omits each `Password`.

    Any other secret, such as a URL, is part of the digest. Guesses of the secret could be checked
    against the digest, so store only the result of `sealed`. While an option has its default
    value, it does not affect the digest.
    """
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).digest()


@lru_cache(maxsize=16)
def sealed(identity: bytes) -> str:
    """Return an identity in the form to store. Takes 50 ms, to slow down guesses of secrets."""
    return hashlib.scrypt(identity, salt=b"tornado-idv", n=2**14, r=8, p=1, dklen=32).hex()


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, Secret | SecretBytes | SecretStr):
        return repr(value.get_secret_value())
    if isinstance(value, set | frozenset):  # the digest needs a fixed order
        return sorted(json.dumps(each, default=_plain) for each in value)
    return repr(value)
