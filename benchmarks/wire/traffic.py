"""Requests as bytes, prepared before the measurement."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import dataset
from tornado_idv.keys.token import issue

PATH = "/api/v1/identify/url"
_BATCH_PATH = "/api/v1/identify/batch"
KEY = issue("measured")
_OTHER_KEY = issue("measured")
_LIST_LENGTH = 100_000
_MAX_RATE = 60_000
_SKEW = 1.1
_SEED = 7


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests with one head and bodies of one length. All responses have ``status``.

    At its end, the list is repeated, unless ``repeats`` is false.
    """

    status: int
    head: bytes
    bodies: tuple[bytes, ...]
    repeats: bool = True

    def write(self, path: Path) -> None:
        """Write the file for ``requests.lua``."""
        path.write_bytes(self.head + b"\n".join(self.bodies))


Mix = Callable[[int, float], Traffic]
"""Makes the traffic of a run, from the number of users and the seconds."""


def make_traffic(
    bodies: Iterable[bytes], status: int = 200, key: str = KEY, path: str = PATH
) -> Traffic:
    """Return the traffic with these bodies."""
    listed = tuple(bodies)
    head = (
        f"POST {path} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(listed[0])}\r\n\r\n"
    )
    return Traffic(status, head.encode(), listed)


def body(text: str) -> bytes:
    """Return the body with this input."""
    return f'{{"input":"{text}"}}'.encode()


def for_users(numbers: Iterable[int]) -> Traffic:
    """Return requests for these users by nickname."""
    return make_traffic(body(f"@{dataset.nickname(number)}") for number in numbers)


def uniform(users: int, _seconds: float) -> Traffic:
    """Return requests for every user equally often, all users before any is repeated."""
    chooser = random.Random(_SEED)
    passes = (chooser.sample(range(users), users) for _ in range(_LIST_LENGTH // users + 1))
    return for_users(itertools.chain.from_iterable(passes))


def batches(items: int, users: int, _seconds: float) -> Traffic:
    """Return batches of this many items by nickname, in order."""
    numbers = itertools.cycle(range(users))
    return make_traffic(
        (
            b'{"items":[%s]}'
            % b",".join(body(f"@{dataset.nickname(next(numbers))}") for _ in range(items))
            for _ in range(max(users // items, 1))
        ),
        path=_BATCH_PATH,
    )


def varying(users: int, seconds: float) -> Traffic:
    """Return uniform traffic of a traced client behind a proxy, with varying header fields."""
    return with_fields(
        uniform(users, seconds),
        "X-Forwarded-For: {address}\r\nX-Request-ID: {id}\r\ntraceparent: 00-{id}-{span}-01\r\n",
    )


def sixty_kinds(users: int, seconds: float) -> Traffic:
    """Return uniform traffic of 60 kinds of client in rotation, all with one key."""
    return with_fields(uniform(users, seconds), "X-Client-{kind}: 1\r\n")


def with_fields(requests: Traffic, fields: str) -> Traffic:
    """Return the same requests with further header fields; see ``requests.lua``."""
    return replace(requests, head=requests.head[:-2] + fields.encode() + b"\r\n")


def zipf(users: int, _seconds: float) -> Traffic:
    """Return requests with the n-th user 1/n**1.1 times as frequent as the first, shuffled."""
    chooser = random.Random(_SEED)
    ranked = chooser.sample(range(users), users)
    weights = [1 / rank**_SKEW for rank in range(1, users + 1)]
    return for_users(chooser.choices(ranked, weights, k=_LIST_LENGTH))


_unused_numbers = itertools.count()


def never_repeating(_users: int, seconds: float) -> Traffic:
    """Return requests for unknown nicknames, each used once in this process."""
    numbers = itertools.islice(_unused_numbers, math.ceil(_MAX_RATE * seconds))
    return replace(
        make_traffic((body(f"@no{number:010d}") for number in numbers), 404), repeats=False
    )


def wrong_key(users: int, seconds: float) -> Traffic:
    """Return valid requests with an unknown key."""
    return make_traffic(uniform(users, seconds).bodies, 401, _OTHER_KEY)


def invalid_format(users: int, seconds: float) -> Traffic:
    """Return requests with a wrong character before the nickname."""
    bodies = uniform(users, seconds).bodies
    return make_traffic((each.replace(b"@", b"!") for each in bodies), 422)


MIXES: Mapping[str, Mix] = {
    "uniform": uniform,
    "Zipf": zipf,
    "never repeating": never_repeating,
    "all 401": wrong_key,
    "all 422": invalid_format,
}
