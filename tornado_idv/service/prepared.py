"""A change of a running service in two steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change of which everything is open, and nothing in force yet.

    Only one at a time may be prepared, and it must be committed or aborted. ``commit`` puts it in
    force in one step of the event loop, for every request that begins from then on, and cannot
    fail. ``abort`` closes what was opened for it; all stays as it is.
    """

    commit: Callable[[], object]
    abort: Callable[[], Awaitable[None]]
