"""Freshness of a response by its ``Cache-Control`` (RFC 9111)."""

from __future__ import annotations

import re

from multidict import MultiMapping

_DIRECTIVE = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"([^"]*)"|([^\s",;]*)))?', re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,10}", re.ASCII)


def freshness(headers: MultiMapping[str]) -> tuple[float | None, bool]:
    """Return the seconds for which the response is fresh, and whether it may be cached at all.

    Seconds are ``None`` if the headers do not tell. ``s-maxage``, which is meant for shared
    caches as this one is, precedes ``max-age``; the response's ``Age`` is subtracted. Values
    that cannot be parsed are ignored.
    """
    directives = _directives(headers)
    storable = "no-store" not in directives
    for name in ("s-maxage", "max-age"):
        if _SECONDS.fullmatch(directives.get(name, "")):
            return max(0.0, float(directives[name]) - _age(headers)), storable
    return None, storable


def _directives(headers: MultiMapping[str]) -> dict[str, str]:
    text = ",".join(headers.getall("Cache-Control", ()))
    return {name.lower(): quoted or plain for name, quoted, plain in _DIRECTIVE.findall(text)}


def _age(headers: MultiMapping[str]) -> float:
    age = headers.get("Age", "")
    return float(age) if _SECONDS.fullmatch(age) else 0.0
