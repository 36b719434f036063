"""The state of a list of accounts from run to run: since when users do not exist."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

from tornado_idv import strict_json
from tornado_idv.cli.common import RefusedError
from tornado_idv.errors import StartError
from tornado_idv.log_format import format_time

_SAMPLE = 100
"""Accounts of a list by which it is recognized in the next run."""
_VERSION = 1


class State(NamedTuple):
    """Since when users do not exist, in Unix time, and some accounts of the last run."""

    column: str
    gone: dict[str, float]
    sample: Collection[str]

    @classmethod
    def load(cls, path: Path, column: str) -> State:
        """Return the state in a file, a new one if there is none.

        Raises `RefusedError` for that of another list, and `StartError`.
        """
        try:
            record = strict_json.loads(path.read_bytes())
            gone = record["gone"].items()
            since = {each: datetime.fromisoformat(at).timestamp() for each, at in gone}
            state = cls(record["column"], since, frozenset(record["sample"]))
            is_known = record["version"] == _VERSION
        except FileNotFoundError:
            return cls(column, {}, ())
        except OSError as error:
            raise StartError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            is_known = False
        if not is_known:
            raise RefusedError(f"{path} is no state of reconcile; name another file")
        if state.column != column:
            raise RefusedError(f"{path} is the state of another list: its column is {state.column}")
        return state

    def write(self, file: IO[str]) -> None:
        """Write the state as `load` reads it."""
        record = {
            "version": _VERSION,
            "column": self.column,
            "sample": sorted(self.sample),
            "gone": {each: format_time(at) for each, at in self.gone.items()},
        }
        json.dump(record, file, indent=1)
        file.write("\n")


class Sampler:
    """Chooses the same accounts of a list in each run, and looks for those of an earlier sample."""

    def __init__(self, earlier: Collection[str]) -> None:
        self._size = len(earlier)
        self._missing = set(earlier)
        self._chosen: dict[int, str] = {}
        self._last = 0

    def add(self, identifier: str) -> None:
        """Consider an account."""
        self._missing.discard(identifier)
        rank = zlib.crc32(identifier.encode(errors="surrogatepass"))
        if len(self._chosen) < _SAMPLE or rank < self._last:
            self._chosen[rank] = identifier
            if len(self._chosen) > _SAMPLE:
                del self._chosen[self._last]
            self._last = max(self._chosen)

    @property
    def is_other_list(self) -> bool:
        """Return whether less than half of the earlier sample is in the list."""
        return 2 * len(self._missing) > self._size

    @property
    def sample(self) -> Collection[str]:
        return self._chosen.values()
