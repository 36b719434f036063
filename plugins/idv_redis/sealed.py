"""Records that only the owner of a secret can write, each bound to one key (HMAC-SHA256)."""

from __future__ import annotations

import hmac
import json
from typing import Any

from pydantic import SecretStr

_VERSION = b"2"
_TAG_SIZE = 32


class Sealer:
    """Seals records of JSON; those of another version are not opened."""

    def __init__(self, secret: SecretStr) -> None:
        self._secret = secret

    def digest(self, text: str) -> str:
        """Return a keyed hash, from which the text cannot be guessed."""
        return self._mac(b"name", text.encode()).hex()

    def seal(self, key: str, record: Any) -> bytes:
        """Return the record, authenticated for this key."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        return self._mac(b"record", self._bound(key, payload)) + payload

    def open(self, key: str, sealed: bytes) -> Any:
        """Return the record, ``None`` if it was not sealed for this key with this secret."""
        tag, payload = sealed[:_TAG_SIZE], sealed[_TAG_SIZE:]
        if not hmac.compare_digest(tag, self._mac(b"record", self._bound(key, payload))):
            return None
        return json.loads(payload)

    def _bound(self, key: str, payload: bytes) -> bytes:
        return _VERSION + b"\n" + key.encode() + b"\n" + payload

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        secret = self._secret.get_secret_value().encode()
        return hmac.digest(secret, purpose + b"\n" + data, "sha256")
