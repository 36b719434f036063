"""Repeated warnings and errors, folded into one line per interval with a count."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_INTERVAL = 10.0
_MAX_EVENTS = 256


@dataclass(slots=True)
class Fold:
    """A written event, and the number of its repetitions since it was written."""

    logger: str
    event: str
    level: str
    until: float
    repeated: int = 0


class Folding:
    """Deduplicates log events: a repeated event is suppressed and counted.

    In the 10 s after an event is written, its repetitions are only counted. Then `expire` calls
    ``write`` for a repeated event, and counts for another 10 s. At most 256 different events are
    counted: one more ends the 10 s of the oldest event early. ``clock`` returns seconds.
    """

    def __init__(
        self, write: Callable[[Fold], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._folds: dict[tuple[str, str], Fold] = {}  # the oldest first
        # Reentrant, and also the handler's lock, as the garbage collector may run code that logs.
        self.lock = threading.RLock()

    def should_write(self, logger: str, event: str, level: str) -> bool:
        """Return whether to write this event. If not, count it."""
        with self.lock:
            self.expire()
            if (fold := self._folds.get((logger, event))) is not None:
                fold.repeated += 1
                return False
            if len(self._folds) >= _MAX_EVENTS:
                self._remove_oldest()
            self._folds[logger, event] = Fold(logger, event, level, self._clock() + _INTERVAL)
            return True

    def expire(self) -> None:
        """End all expired intervals. Begin a new interval for each repeated event."""
        with self.lock:
            now = self._clock()
            while self._folds and next(iter(self._folds.values())).until <= now:
                fold = self._remove_oldest()
                if fold.repeated:
                    fold.repeated, fold.until = 0, now + _INTERVAL
                    self._folds[fold.logger, fold.event] = fold

    def close(self) -> None:
        """Write all repeated events."""
        with self.lock:
            while self._folds:
                self._remove_oldest()

    def _remove_oldest(self) -> Fold:
        fold = self._folds.pop(next(iter(self._folds)))
        if fold.repeated:
            self._write(fold)
        return fold
