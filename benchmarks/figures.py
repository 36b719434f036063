"""What was measured, and what was promised of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Promise:
    """What a figure is to be: ``at`` most, or at least, the ``bound``."""

    at: Literal["most", "least"]
    bound: float

    def kept(self, value: float) -> bool:
        return value <= self.bound if self.at == "most" else value >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured once in each round; its value is the median of the rounds.

    ``of`` names the server it is of, where the same is measured of several.
    """

    what: str
    unit: str
    rounds: tuple[float, ...]
    promise: Promise | None = None
    of: str | None = None

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def kept(self) -> bool | None:
        """Whether the promise was kept; ``None`` where nothing was promised."""
        return None if self.promise is None else self.promise.kept(self.value)

    def record(self) -> dict[str, Any]:
        """The figure for JSON."""
        return asdict(self) | {"value": self.value, "kept": self.kept}


def micros(what: str, seconds: Sequence[float], promise: Promise | None = None) -> Figure:
    """What one operation took, in microseconds."""
    return Figure(what, "µs", tuple(each * 1e6 for each in seconds), promise)


def ratio(
    what: str, over: Sequence[float], under: Sequence[float], promise: Promise | None = None
) -> Figure:
    """The ratio of two sides, taken round by round: what slows one round slows both of them."""
    return Figure(what, "x", tuple(a / b for a, b in zip(over, under, strict=True)), promise)
