"""The contract of shared limits: what keys have used, counted over several machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from tornado_idv.options import Options


class SharedLimitsOptions(Options):
    """The shared limits; a kind adds its own options."""

    kind: str
    """The kind of shared limits, as its plugin names it."""


class LimitUse(NamedTuple):
    """Use of a limit, in seconds: its events, times the seconds between two of them.

    ``name`` is different for each key, limit and rate; it contains the key id.
    """

    name: str
    seconds: float


OptionsT = TypeVar("OptionsT", bound=SharedLimitsOptions)


class SharedLimits(ABC, Generic[OptionsT]):
    """A theoretical arrival time (TAT) for each limit; the methods run on the event loop.

    What `exchange` raises is logged, and the limits of each machine apply alone: it never delays or
    fails a request. It need not bound its time.
    """

    options_type: ClassVar[type[SharedLimitsOptions]] = SharedLimitsOptions
    """The model of this kind's options."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    async def exchange(self, since: float, uses: Sequence[LimitUse]) -> Sequence[float]:
        """Add what was used in the last ``since`` seconds; return how far each TAT is ahead.

        A TAT is first moved forward to the beginning of that time, and then by what was used, in
        one step for all replicas, by one clock. The result is in seconds from the time of that
        step, and negative for a TAT that has passed. Without uses it must fail where it would with
        some: it is called so to learn whether exchanges succeed again.
        """

    async def close(self) -> None:
        """Close every connection."""


AnySharedLimits = SharedLimits[Any]
