"""Names of members as they may be told.

One that nobody knows may hold a secret: where the blank after a colon was
forgotten, YAML makes one name of ``token:idv_...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

Steps = tuple[str | int, ...]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)


def may_be_told(step: str | int) -> bool:
    """Whether a step of a path is an index, or a name that looks like one of a setting."""
    return isinstance(step, int) or _PLAIN.fullmatch(step) is not None


def dotted(path: Iterable[str | int]) -> str:
    """The path as people write it, like ``backends[1].columns.nickname``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def meant(name: str, known: Sequence[str]) -> str | None:
    """The known name that was likely meant."""
    if (begins := _before_colon(name)) in known:
        return begins
    return next(iter(get_close_matches(name, known, n=1)), None)


def unknown(name: str, known: Sequence[str]) -> str:
    """What is wrong with a name that is none of the known ones; it is not repeated.

    Without ``known`` nothing is suggested.
    """
    if not known:
        return "unknown setting"
    begins = _before_colon(name)
    if begins in known:
        return f'a blank is missing after the colon of "{begins}"'
    if (near := meant(name, known)) is not None:
        return f'unknown setting; did you mean "{near}"?'
    return f"unknown setting; known here are {', '.join(known)}"


def _before_colon(name: str) -> str | None:
    begins, colon, _ = name.partition(":")
    return begins if colon else None
