"""Made-up users for tests and benchmarks, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tornado_idv.model import User

_PLANS = ("Free", "Pro", "Team")
_CARDS = 10**16
_STEP = 6_180_339_887_498_949
"""Coprime to the number of cards, so that no card number comes twice."""
_NAMES = ("ana", "ben", "chen", "dora", "emil", "fay", "goran", "hana", "ivo", "june")


def generated_users(count: int, seed: int) -> Iterator[User]:
    """Yield users with unique nicknames and card numbers, neither of them in order."""
    chooser = random.Random(seed)  # noqa: S311 no secret
    first = chooser.randrange(_CARDS)
    for number in range(count):
        name = _NAMES[int(chooser.random() * len(_NAMES))]
        card = (first + number * _STEP) % _CARDS
        plan = _PLANS[int(chooser.random() * len(_PLANS))]
        yield User(plan, f"{card:016d}", f"{name}{card % 7}_{number:07d}")
