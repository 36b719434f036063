"""Measured figures and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """An upper or lower bound for a figure. ``at`` is "most" or "least"."""

    at: Literal["most", "least"]
    bound: float

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at == "most" else value >= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity, measured once in each round. Its value is the median of the rounds.

    If several servers have the same quantity, ``of`` is the name of the server.
    """

    what: str
    unit: str
    rounds: tuple[float, ...]
    target: Target | None = None
    of: str | None = None

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def met(self) -> bool | None:
        """True if the target was met. ``None`` without a target."""
        return None if self.target is None else self.target.met(self.value)

    def record(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        return asdict(self) | {"value": self.value, "met": self.met}


def microseconds(what: str, seconds: Sequence[float], target: Target | None = None) -> Figure:
    """Return the time of one operation, in microseconds."""
    return Figure(what, "µs", tuple(each * 1e6 for each in seconds), target)


def ratio(
    what: str, over: Sequence[float], under: Sequence[float], target: Target | None = None
) -> Figure:
    """Return the ratio of two sides, computed per round: noise in a round affects both."""
    return Figure(what, "x", tuple(a / b for a, b in zip(over, under, strict=True)), target)
