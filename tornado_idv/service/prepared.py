"""A change of a running service in two steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared change: its resources are open, and not used yet (see `Service.prepare`).

    Only one at a time may be prepared, and it must be committed or aborted once. ``commit`` applies
    it in one step of the event loop, to every request that begins from then on, and cannot fail.
    ``abort`` closes what was opened for it; all stays as it is.
    """

    commit: Callable[[], object]
    abort: Callable[[], Awaitable[None]]
