"""What every peer is asked and answers: keys, users and refusals, and nothing of HTTP.

For those that stand in front of another directory it tells where that is, too.

It is read from the command line as it is imported, so that a peer can be written as its
framework's documentation has it, with an application at the top level.
"""

from __future__ import annotations

import json
import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

PATH = "/api/v1/identify/url"
NICKNAME = re.compile(r"@[A-Za-z0-9_.-]{1,64}", re.ASCII)

PORT = int(sys.argv[1])
_RECORDS = json.loads(Path(sys.argv[2]).read_bytes())
KEYS: dict[bytes, str] = {bytes.fromhex(key): name for key, name in _RECORDS["keys"].items()}
USERS: dict[str, dict[str, str]] = _RECORDS["users"]
UPSTREAM: dict[str, str] = _RECORDS["upstream"]


def _refusal(code: str, message: str) -> dict[str, str]:
    return {"status": "error", "code": code, "message": message}


TOKEN = _refusal("token_invalid_or_expired", "Token invalid or expired")
NOT_FOUND = _refusal("not_found", "User not found")
FORMAT = _refusal("invalid_format", "Invalid format")
CHALLENGE = {"WWW-Authenticate": "Bearer"}


def is_token(token: str) -> bool:
    """Whether this is the token of a key."""
    return sha256(token.encode()).digest() in KEYS


def is_key(authorization: str) -> bool:
    """Whether this ``Authorization`` header holds a key."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and is_token(token)


def find(question: Any) -> tuple[int, dict[str, str]]:
    """The status and the record that answer a decoded body."""
    text = question.get("input") if isinstance(question, dict) else None
    if not isinstance(text, str) or not NICKNAME.fullmatch(text):
        return 422, FORMAT
    user = USERS.get(text[1:])
    return (404, NOT_FOUND) if user is None else (200, user)
