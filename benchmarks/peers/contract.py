"""Keys, users and error records for all peers, without HTTP.

For proxies, the file also has the URL and the credential of the upstream directory.

The file is read at import time. So a peer can have an application at module level, as in the
documentation of its framework.
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


def _error(code: str, message: str) -> dict[str, str]:
    return {"status": "error", "code": code, "message": message}


TOKEN = _error("token_invalid_or_expired", "Token invalid or expired")
NOT_FOUND = _error("not_found", "User not found")
FORMAT = _error("invalid_format", "Invalid format")
CHALLENGE = {"WWW-Authenticate": "Bearer"}


def is_token(token: str) -> bool:
    """Return whether the token is valid."""
    return sha256(token.encode()).digest() in KEYS


def is_key(authorization: str) -> bool:
    """Return whether the ``Authorization`` header contains a valid token."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and is_token(token)


def find(document: Any) -> tuple[int, dict[str, str]]:
    """Return the status and the record of the response to a decoded body."""
    nickname = nickname_in(document)
    if nickname is None:
        return 422, FORMAT
    user = USERS.get(nickname)
    return (404, NOT_FOUND) if user is None else (200, user)


def nickname_in(document: Any) -> str | None:
    """Return the nickname in a decoded body, without ``@``; ``None`` if it is invalid."""
    text = document.get("input") if isinstance(document, dict) else None
    return text[1:] if isinstance(text, str) and NICKNAME.fullmatch(text) else None


def found(plan: str, card_number: str, nickname: str, profile_url: str | None) -> dict[str, str]:
    """Return the response record for a user of a source."""
    return {
        "status": "ok",
        "plan": plan,
        "card_number": card_number,
        "nickname": f"@{nickname}",
        "profile_url": profile_url or f"{UPSTREAM['site']}/m/{nickname}",
    }
