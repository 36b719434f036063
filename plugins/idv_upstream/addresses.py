"""Addresses of other services, as an operator writes them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from yarl import URL

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ORIGIN = rf"(?i:https?)://(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{{0,4}})?"
_PATH = r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)*/?"


def is_origin(text: str) -> bool:
    """Whether it is ``http`` or ``https`` with a host and perhaps a port, and no more."""
    return re.fullmatch(_ORIGIN, text, re.ASCII) is not None and _is_understood(text)


def _address(value: str) -> str:
    if not re.fullmatch(_ORIGIN + _PATH, value, re.ASCII) or not _is_understood(value):
        raise ValueError(
            "not an address this service can ask; write http or https, a host and, if need be, "
            "a port and a path, like https://directory.example/idv: no user info, query, "
            "fragment, percent-encoding or dot segments"
        )
    return value.removesuffix("/")


def _is_understood(value: str) -> bool:
    """Whether the client can ask there: it judges ports and punycode hosts, and not IPv6."""
    try:
        host = URL(value).host or ""
        return "[" not in value or bool(IPv6Address(host))
    except ValueError:
        return False


Address = Annotated[
    str,
    AfterValidator(_address),
    WithJsonSchema({"type": "string", "examples": ["https://directory.example"]}),
]
"""An ``http`` or ``https`` address without user info, query and fragment; kept without a slash
at its end."""
