"""The format of tokens: ``idv_<id>_<secret>_<crc>``, or any token68 issued elsewhere.

The id is public. The secret has 190 random bits. The CRC-32 detects typos in the configuration.
Only the SHA-256 of a token is stored. A slow hash is not needed, because a random secret cannot be
guessed. With a slow hash, requests with wrong tokens could overload the service.
"""

import hashlib
import re
import secrets
import string
import zlib

MAX_LENGTH = 512
_MIN_LENGTH = 16
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
_OURS = re.compile(r"(?P<checked>idv_[A-Za-z0-9.-]+_[A-Za-z0-9]+)_(?P<crc>[0-9a-f]{8})", re.ASCII)


def is_token68(text: str) -> bool:
    """Return whether ``text`` is a token68 (RFC 9110, 11.2) of at most 512 characters."""
    return len(text) <= MAX_LENGTH and _TOKEN68.fullmatch(text) is not None


def digest(token: str) -> bytes:
    """Return the SHA-256 of a token: 32 bytes, stored instead of the token."""
    return hashlib.sha256(token.encode()).digest()


def issue(key_id: str) -> str:
    """Return a new token for the key with this id."""
    secret = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(32))
    checked = f"idv_{key_id}_{secret}"
    return f"{checked}_{_crc(checked)}"


def check_token(text: str) -> None:
    """Raise `ValueError`, with a reason for the operator, unless ``text`` is a valid token."""
    if not is_token68(text) or len(text) < _MIN_LENGTH:
        raise ValueError("not a token: 16 to 512 letters, digits and - . _ ~ + / are needed")
    if text.startswith("idv_"):
        match = _OURS.fullmatch(text)
        if match is None or _crc(match["checked"]) != match["crc"]:
            raise ValueError("the token's check digits are wrong; it was mistyped or cut")


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode('ascii')):08x}"
