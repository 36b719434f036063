"""A strict parser for configured URLs of an upstream. It never repairs a URL."""

import re
from ipaddress import IPv6Address
from typing import Annotated

import yarl
from pydantic import AfterValidator, WithJsonSchema

_PARTS = re.compile(r"([^/?#{}]*://[^/?#]*)?(/[^?#]*)?(?:\?([^#]*))?", re.DOTALL)
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ORIGIN = re.compile(
    rf"(?i:https?)://(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{{0,4}})?",
    re.ASCII,
)
_SEGMENT = re.compile(r"(?!\.\.?$)[A-Za-z0-9._~-]+", re.ASCII)


def split_url(text: str) -> tuple[str, str, str]:
    """Return the origin, the path and the query of a URL. Raises `ValueError` for an invalid URL.

    The origin is empty for a path below ``base_url``. Path and query may contain placeholders.
    """
    parts = _PARTS.fullmatch(text)
    if parts is None or not (parts[1] or parts[2]) or text.startswith("//"):
        raise ValueError(
            "not a valid URL; write a path with one leading slash, like /users, or a complete "
            "URL, like https://directory.example/users: placeholders can only follow the host, "
            "and a fragment (#) is not allowed"
        )
    if parts[1] and not _is_origin(parts[1]):
        raise ValueError(
            "not a valid scheme, host or port; write http or https, a host and, if needed, "
            "a port, without user info or placeholders"
        )
    return parts[1] or "", parts[2] or "/", parts[3] or ""


def _is_origin(text: str) -> bool:
    """Return whether the HTTP client accepts this origin.

    IPv6 addresses are checked here, since yarl does not check them.
    """
    if not _ORIGIN.fullmatch(text):
        return False
    try:
        host = yarl.URL(text).host or ""
        return "[" not in text or bool(IPv6Address(host))
    except ValueError:
        return False


def origin_of(text: str) -> str:
    """Return the origin of a valid complete URL, or an empty text for any other text."""
    try:
        return split_url(text)[0]
    except ValueError:
        return ""


def _base_url(text: str) -> str:
    origin = origin_of(text)
    first, *segments = text.removeprefix(origin).removesuffix("/").split("/")
    if not origin or first or not all(map(_SEGMENT.fullmatch, segments)):
        raise ValueError(
            "not a valid base URL; write http or https, a host and, if needed, a port and a path, "
            "like https://directory.example/idv, without user info, query, fragment, "
            "percent-encoding or dot segments"
        )
    return text.removesuffix("/")


BaseUrl = Annotated[
    str,
    AfterValidator(_base_url),
    WithJsonSchema({"type": "string", "examples": ["https://directory.example"]}),
]
"""An ``http`` or ``https`` URL without user info, query, fragment or trailing slash."""
