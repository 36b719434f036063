"""How much is measured, where files are kept, and how progress is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.progress import Progress


class Advance(Protocol):
    """Told that so much more was done."""

    def __call__(self, amount: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """``keys`` users are asked for, of tables with so many ``users``, in so many ``rounds``.

    Over HTTP a round lasts ``seconds``, the load is on ``load_core``, and ``peers`` is the
    interpreter that has the peers. ``left_out`` tells why something was not measured.
    """

    keys: int
    users: tuple[int, ...]
    rounds: int
    folder: Path
    progress: Progress
    seconds: int
    load_core: int
    peers: Path
    left_out: dict[str, str] = field(default_factory=dict)

    def leaves_out(self, what: str, reason: str | None) -> bool:
        """Notes the reason, if there is one, for which something is not measured."""
        if reason is not None:
            self.left_out[what] = reason
        return reason is not None

    @contextmanager
    def step(self, what: str, total: int) -> Iterator[Advance]:
        """Shows long work under way, and gives what is told of its progress.

        It draws only when it is told: a bar that drew in the background would be measured.
        """
        task = self.progress.add_task(what, total=total)

        def advance(amount: int = 1) -> None:
            self.progress.update(task, advance=amount, refresh=True)

        yield advance
