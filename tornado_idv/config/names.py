"""Names of settings in error messages.

An unknown name may contain a secret: without the space after a colon, YAML reads
``token:idv_...`` as one name. Such names are never printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

Steps = tuple[str | int, ...]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)


def is_safe_to_print(step: str | int) -> bool:
    """Whether a step of a path is an index, or looks like the name of a setting."""
    return isinstance(step, int) or _PLAIN.fullmatch(step) is not None


def dotted(path: Iterable[str | int]) -> str:
    """Return a path in the usual notation, like ``backends[1].columns.nickname``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def suggest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that was probably meant."""
    if (start := _before_colon(name)) in known:
        return start
    return next(iter(get_close_matches(name, known, n=1)), None)


def unknown(name: str, known: Sequence[str]) -> str:
    """Return the message for an unknown name; without ``known`` it suggests nothing."""
    if not known:
        return "unknown setting"
    start = _before_colon(name)
    if start in known:
        return f'a space is missing after the colon of "{start}"'
    if (near := suggest(name, known)) is not None:
        return f'unknown setting; did you mean "{near}"?'
    return f"unknown setting; known here are {', '.join(known)}"


def _before_colon(name: str) -> str | None:
    start, colon, _ = name.partition(":")
    return start if colon else None
