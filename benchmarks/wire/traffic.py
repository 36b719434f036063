"""What the servers are asked, as bytes that were made beforehand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import people
from tornado_idv.keys.token import issue

PATH = "/api/v1/identify/url"
KEY = issue("measured")
_OTHER_KEY = issue("measured")
_LISTED = 100_000
_NEVER_MORE_PER_SECOND = 60_000
_SKEW = 1.1
_SEED = 7


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests with one head and bodies of one length; each is answered with ``status``.

    The list begins anew at its end, but where it is not to repeat.
    """

    status: int
    head: bytes
    bodies: tuple[bytes, ...]
    repeats: bool = True

    def write(self, path: Path) -> None:
        """Writes the file that ``requests.lua`` reads."""
        path.write_bytes(self.head + b"\n".join(self.bodies))


Mix = Callable[[int, int], Traffic]
"""Makes the traffic of a run over so many users, of so many seconds."""


def asking(bodies: Iterable[bytes], status: int = 200, key: str = KEY) -> Traffic:
    """The traffic of these bodies."""
    every = tuple(bodies)
    head = (
        f"POST {PATH} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(every[0])}\r\n\r\n"
    )
    return Traffic(status, head.encode(), every)


def body(text: str) -> bytes:
    """The body that asks for this."""
    return f'{{"input":"{text}"}}'.encode()


def for_users(numbers: Iterable[int]) -> Traffic:
    """Asks for these users by nickname."""
    return asking(body(f"@{people.nickname(number)}") for number in numbers)


def uniform(users: int, _seconds: int) -> Traffic:
    """Every user as often as any other, and all of them before one comes again."""
    chooser = random.Random(_SEED)
    passes = (chooser.sample(range(users), users) for _ in range(_LISTED // users + 1))
    return for_users(itertools.chain.from_iterable(passes))


def zipf(users: int, _seconds: int) -> Traffic:
    """The n-th user asked for 1/n**1.1 as often as the first; nicknames tell no rank."""
    chooser = random.Random(_SEED)
    ranked = chooser.sample(range(users), users)
    weights = [1 / rank**_SKEW for rank in range(1, users + 1)]
    return for_users(chooser.choices(ranked, weights, k=_LISTED))


_unasked = itertools.count()


def never_again(_users: int, seconds: int) -> Traffic:
    """Nicknames of nobody, none of which is asked for twice in this process."""
    numbers = itertools.islice(_unasked, _NEVER_MORE_PER_SECOND * seconds)
    return replace(asking((body(f"@no{number:010d}") for number in numbers), 404), repeats=False)


def wrong_key(users: int, seconds: int) -> Traffic:
    """Good questions with a key that nobody issued."""
    return asking(uniform(users, seconds).bodies, 401, _OTHER_KEY)


def wrong_form(users: int, seconds: int) -> Traffic:
    """Good questions, but for the mark before the nickname."""
    bodies = uniform(users, seconds).bodies
    return asking((each.replace(b"@", b"!") for each in bodies), 422)


MIXES: Mapping[str, Mix] = {
    "uniform": uniform,
    "Zipf": zipf,
    "never repeating": never_again,
    "all 401": wrong_key,
    "all 422": wrong_form,
}
