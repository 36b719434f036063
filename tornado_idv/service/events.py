"""Events of the service, such as ``ready``, for features such as ``systemd``."""

import os
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Literal, Protocol, Self

from tornado_idv.features import FEATURES

Event = Literal["ready", "reloading", "stopping", "alive"]
"""``ready`` is sent when the service begins to serve, and at the end of each reload."""


class Listener(Protocol):
    """A function that receives events.

    ``interval`` is the maximum time between two ``alive`` events, in seconds. With ``None``, the
    listener needs no ``alive`` events.
    """

    interval: float | None

    def __call__(self, event: Event, /) -> None: ...


class Events:
    """Sends events to listeners. ``interval`` is the shortest ``interval`` of the listeners."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = [*listeners]
        intervals = (each.interval for each in self._listeners if each.interval is not None)
        self.interval = min(intervals, default=None)

    @classmethod
    def of_features(cls) -> Self:
        """Return an instance with the listeners of all features."""
        return cls(resolve_name(each.events)(os.environ) for each in FEATURES if each.events)

    def send(self, event: Event) -> None:
        for each in self._listeners:
            each(event)
