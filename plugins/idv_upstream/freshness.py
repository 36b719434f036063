"""For how long an answer may be remembered, by the word of whoever gave it (RFC 9111)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_DIRECTIVE = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"([^"]*)"|([^\s",;]*)))?', re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,10}", re.ASCII)


def seconds_fresh(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an answer with these headers holds; ``None`` if they do not say.

    ``no-store`` is 0. Of ``s-maxage``, which is meant for caches that serve many as this one
    does, and ``max-age``, the first counts, less the ``Age`` that the answer has already.
    What is not understood is no word at all.
    """
    text = headers.get("Cache-Control", "")
    directives = {name.lower(): quoted or plain for name, quoted, plain in _DIRECTIVE.findall(text)}
    if "no-store" in directives:
        return 0.0
    for name in ("s-maxage", "max-age"):
        if _SECONDS.fullmatch(directives.get(name, "")):
            return max(0.0, float(directives[name]) - _age(headers))
    return None


def _age(headers: Mapping[str, str]) -> float:
    age = headers.get("Age", "")
    return float(age) if _SECONDS.fullmatch(age) else 0.0
