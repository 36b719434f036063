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

    A round over HTTP lasts ``seconds``; the load generator runs on ``load_core``; ``peers`` is
    the interpreter in whose environment the peers are installed. ``skipped`` maps what was not
    measured to the reason. With ``warm_up`` each side runs once before the first round.
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
        """Record the reason, if any, why something is not measured; return whether there is one."""
        if reason is not None:
            self.skipped[what] = reason
        return reason is not None

    @contextmanager
    def step(self, what: str, total: int) -> Iterator[Advance]:
        """Show a progress bar; yield the function that advances it.

        It is redrawn only on a call: redrawing in the background would be measured.
        """
        task = self.progress.add_task(what, total=total)

        def advance(amount: int = 1) -> None:
            self.progress.update(task, advance=amount, refresh=True)

        yield advance
