"""The state of ``tornado-idv reconcile`` between runs: the start of each user's absence."""

import fcntl
import json
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

from tornado_idv import strict_json
from tornado_idv.cli.common import RefusedError
from tornado_idv.errors import IdvError, StartError
from tornado_idv.log_format import format_time

_SAMPLE = 100
"""Number of accounts in the sample. It shows the next run whether ACCOUNTS is the same list."""
_VERSION = 1


class UndeterminedError(IdvError):
    """The result of the run is not reliable, so no account may be listed for deletion."""


class Absence(NamedTuple):
    """An absence of a user: its start in Unix time, and the number of runs without the user."""

    since: float
    runs: int


class State(NamedTuple):
    """The absent users by identifier, and a sample of the accounts of the last run."""

    column: str
    gone: dict[str, Absence]
    sample: Collection[str]

    @classmethod
    def load(cls, path: Path, column: str, now: float) -> "State":
        """Return the state from a file, or a new state if the file does not exist.

        An absence that begins after ``now`` is dropped, because a run had a wrong clock. Raises
        `RefusedError` if the file is not a state of this list, and `StartError` for a read error.
        """
        try:
            record = strict_json.loads(path.read_bytes())
            absences = {
                each: Absence(datetime.fromisoformat(at).timestamp(), int(runs))
                for each, (at, runs) in record["gone"].items()
            }
            past = {each: absence for each, absence in absences.items() if absence.since <= now}
            state = cls(record["column"], past, frozenset(record["sample"]))
            is_known = record["version"] == _VERSION
        except FileNotFoundError:
            return cls(column, {}, ())
        except OSError as error:
            raise StartError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            is_known = False
        if not is_known:
            raise RefusedError(f"{path} is not a state file of reconcile; name another file")
        if state.column != column:
            raise RefusedError(f"{path} is the state of another list: its column is {state.column}")
        return state

    def write(self, file: IO[str]) -> None:
        """Write the state to a file in the format of `load`."""
        record = {
            "version": _VERSION,
            "column": self.column,
            "sample": sorted(self.sample),
            "gone": {each: (format_time(at), runs) for each, (at, runs) in self.gone.items()},
        }
        json.dump(record, file, indent=1)
        file.write("\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the state file. Raises `UndeterminedError` if another run holds the lock."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"{lock}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UndeterminedError(f"{path} is in use by another run") from None
        yield


class Sampler:
    """Chooses a sample of the accounts, and looks for the sample of the last run in the list.

    The sample consists of the accounts with the lowest checksums. An unchanged list has the same
    sample in each run, and a small change of the list changes little of the sample.
    """

    def __init__(self, earlier: Collection[str]) -> None:
        self._size = len(earlier)
        self._missing = set(earlier)
        self._chosen: dict[int, str] = {}
        self._last = 0

    def add(self, identifier: str) -> None:
        self._missing.discard(identifier)
        rank = zlib.crc32(identifier.encode(errors="surrogatepass"))
        if len(self._chosen) < _SAMPLE or rank < self._last:
            self._chosen[rank] = identifier
            if len(self._chosen) > _SAMPLE:
                del self._chosen[self._last]
            self._last = max(self._chosen)

    @property
    def is_other_list(self) -> bool:
        """True if less than half of the last run's sample is in the list."""
        return 2 * len(self._missing) > self._size

    @property
    def sample(self) -> Collection[str]:
        return self._chosen.values()
