"""JSON from another service, read strictly; it knows nothing of what a document means."""

from __future__ import annotations

from typing import Any

from tornado_idv import Broken, strict_json

MAX_DEPTH = 128


def decode(body: bytes) -> Any:
    """Return the one JSON document in ``body``; raises `Broken` if it is not valid.

    Strings may hold a lone surrogate, as JSON can escape one.
    """
    try:
        return strict_json.loads(body, max_depth=MAX_DEPTH)
    except ValueError:
        raise Broken("an answer that is not valid JSON") from None


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written in UTF-8; half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
