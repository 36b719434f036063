"""Plan of a run: amounts, a folder for files, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.progress import Progress


class Advance(Protocol):
    """Reports progress."""

    def __call__(self, amount: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Amounts to measure: ``rounds`` of lookups of ``keys`` users, in tables of ``users`` rows.

    A round over HTTP lasts ``seconds``. The load generator runs on ``load_core``. ``peers`` is the
    interpreter of the environment with the peers. ``skipped`` has the reasons for skipped
    benchmarks. With ``warm_up``, each side runs once before the first round.
    """

    keys: int
    users: tuple[int, ...]
    rounds: int
    folder: Path
    progress: Progress
    seconds: float
    load_core: int
    peers: Path
    skipped: dict[str, str] = field(default_factory=dict)
    warm_up: bool = True

    def skip(self, what: str, reason: str | None) -> bool:
        """Record the reason for not measuring something. Return false without a reason."""
        if reason is not None:
            self.skipped[what] = reason
        return reason is not None

    @contextmanager
    def step(self, what: str, total: int) -> Iterator[Advance]:
        """Show a progress bar. Yield the function to advance it.

        Only calls redraw it: redrawing in the background would disturb the measurement.
        """
        task = self.progress.add_task(what, total=total)

        def advance(amount: int = 1) -> None:
            self.progress.update(task, advance=amount, refresh=True)

        yield advance
