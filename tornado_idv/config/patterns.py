"""Finds regular expressions that take too long to refuse some text.

Python's engine backtracks: ``([a-z]+)*`` tries every way to divide a run of letters before it
refuses what follows. Matching runs on the event loop, so all other requests wait. This is a
probe with text made from the expression itself, and no proof.
"""

from __future__ import annotations

import re
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tornado_idv.config.settings import Settings
from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import MAX_NICKNAME, Identifiers

Prepare = Callable[[str], str | None]
"""Returns the text that a request can make the expression match, ``None`` if there is none."""

SLOW = 0.02
"""Seconds of CPU time; an expression without nested repetitions needs some microseconds."""

_BUDGET = 2.0
"""Seconds after which nothing more is tried."""
_FAST = 20e-6
_MAX_ATOMS = 60
_LONGEST_UNIT = 3
_LONGEST_PREFIX = 8
_CHARACTERS = string.ascii_lowercase + string.digits + string.ascii_uppercase + string.punctuation
_TAILS = ("", "\n", "!", "-", ".", "_", "0", "a", "Z")
_TOKEN = re.compile(
    r"\(\?(?:P?<\w+>|P=\w+\)|[aiLmsux-]*[:)]|<?[=!]|\#[^)]*\))"  # groups, flags, look-around
    r"|\{(?P<times>[0-9]{0,3}),?[0-9]*\}"
    r"|(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|?*+^$])",
    re.DOTALL,
)


def slow_patterns(settings: Settings) -> Iterator[tuple[int | str, ...]]:
    """Yield the paths of the settings whose expressions are slow."""
    identifiers = settings.make_identifiers()
    if is_slow(identifiers.nickname, identifiers.candidate):
        yield "identifiers", "nickname_pattern"
        return  # the others see only what this one accepts, which takes too long to find out
    for i, backend in enumerate(settings.backends):
        if backend.match is not None:
            pattern = re.compile(backend.match, re.ASCII)
            if is_slow(pattern, lambda text: _query_text(identifiers, text)):
                yield "backends", i, "match"


def is_slow(pattern: re.Pattern[str], prepare: Prepare) -> bool:
    """Return whether a text was found that takes longer than `SLOW` to match or to refuse."""
    give_up_at = time.thread_time() + _BUDGET
    for prefix, unit in dict.fromkeys(_repetitions(pattern.pattern)):
        for tail in _TAILS:
            if time.thread_time() > give_up_at:
                return False
            if _grows(pattern, prepare, prefix, unit, tail):
                return True
    return False


def _query_text(identifiers: Identifiers, text: str) -> str | None:
    try:
        return identifiers.parse_any(text if text.isdigit() else f"@{text.lstrip('@')}").text
    except InvalidFormat:
        return None


def _grows(pattern: re.Pattern[str], prepare: Prepare, prefix: str, unit: str, tail: str) -> bool:
    """Try longer and longer runs of ``unit``.

    The steps are small once it takes some time: where that doubles with each character, the
    text that is found slow takes half a second, and not for ever.
    """
    most = (MAX_NICKNAME - len(prefix) - len(tail)) // len(unit)
    count = 8
    while True:
        count = min(count, most)
        text = prepare(prefix + unit * count + tail)
        if text is None:
            return False
        seconds = _seconds(pattern, text)
        if seconds > SLOW and _seconds(pattern, text) > SLOW:
            return True
        if count == most:
            return False
        count = count * 2 if seconds < _FAST else count * 5 // 4


def _seconds(pattern: re.Pattern[str], text: str) -> float:
    began = time.thread_time()
    pattern.fullmatch(text)
    return time.thread_time() - began


def _repetitions(pattern: str) -> Iterator[tuple[str, str]]:
    """Prefixes and units to repeat, from neighbouring parts of the expression."""
    samples = _samples(pattern)[:_MAX_ATOMS]
    for start in range(len(samples)):
        prefixes = {0, *range(max(0, start - _LONGEST_PREFIX), start + 1)}
        for end in range(start + 1, min(start + _LONGEST_UNIT, len(samples)) + 1):
            for first in sorted(prefixes, reverse=True):
                yield (
                    "".join(samples[first:start])[: MAX_NICKNAME // 2],
                    "".join(samples[start:end]),
                )


def _samples(pattern: str) -> list[str]:
    """Text for each class and literal of the expression, as often as it must be there."""
    atoms: list[tuple[frozenset[str], int]] = []
    for token in _TOKEN.finditer(pattern):
        if token["times"] and atoms:
            atoms[-1] = atoms[-1][0], max(1, int(token["times"]))
        elif token["atom"] and (characters := _matched_by(token["atom"])):
            atoms.append((characters, 1))
    # Overlapping parts, as in (\w|\d)*, are what makes an expression slow.
    common = Counter(character for characters, _ in atoms for character in characters)
    return [max(sorted(each), key=common.__getitem__) * times for each, times in atoms]


def _matched_by(atom: str) -> frozenset[str]:
    try:
        matches = re.compile(atom, re.ASCII).fullmatch
    except re.error:  # a back reference
        return frozenset()
    return frozenset(filter(matches, _CHARACTERS))
