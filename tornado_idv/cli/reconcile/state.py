"""The state of a list of accounts from run to run: since when users do not exist."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from tornado_idv import strict_json
from tornado_idv.cli.common import RefusedError
from tornado_idv.cli.files import replaced_file
from tornado_idv.log_format import format_time

_SAMPLE = 100
"""Accounts of a list by which it is recognized in the next run."""
_VERSION = 1


@dataclass
class State:
    """Since when users do not exist, in Unix time, and some accounts of the last run."""

    column: str = ""
    gone: dict[str, float] = field(default_factory=dict)
    sample: frozenset[str] = frozenset()

    @classmethod
    def load(cls, path: Path, column: str) -> State:
        """Return the state in a file, a new one if there is none; raises `RefusedError`."""
        try:
            record = strict_json.loads(path.read_bytes())
            gone = record["gone"].items()
            state = cls(
                record["column"],
                {each: datetime.fromisoformat(at).timestamp() for each, at in gone},
                frozenset(record["sample"]),
            )
            is_known = record["version"] == _VERSION
        except FileNotFoundError:
            return cls(column)
        except OSError as error:
            raise RefusedError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            is_known = False
        if not is_known:
            raise RefusedError(f"{path} is no state of reconcile; name another file")
        if state.column != column:
            raise RefusedError(f"{path} is the state of another list: its column is {state.column}")
        return state

    def save(self, path: Path) -> None:
        """Replace the file; raises `StartError`."""
        record = {
            "version": _VERSION,
            "column": self.column,
            "sample": sorted(self.sample),
            "gone": {each: format_time(at) for each, at in self.gone.items()},
        }
        with replaced_file(path) as file:
            json.dump(record, file, indent=1)
            file.write("\n")


class Sampler:
    """Chooses the same accounts of a list in each run, and counts those of an earlier sample."""

    def __init__(self, earlier: frozenset[str]) -> None:
        self._earlier = earlier
        self._seen: set[str] = set()
        self._chosen: list[tuple[int, str]] = []

    def add(self, identifier: str) -> None:
        """Consider an account."""
        if identifier in self._earlier:
            self._seen.add(identifier)
        rank = -int.from_bytes(blake2b(identifier.encode(), digest_size=8).digest())
        entry = rank, identifier
        if len(self._chosen) < _SAMPLE:
            if entry not in self._chosen:
                heapq.heappush(self._chosen, entry)
        elif entry > self._chosen[0] and entry not in self._chosen:
            heapq.heapreplace(self._chosen, entry)

    @property
    def is_other_list(self) -> bool:
        """Return whether less than half of the earlier sample is in the list."""
        return 2 * len(self._seen) < len(self._earlier)

    @property
    def sample(self) -> frozenset[str]:
        return frozenset(identifier for _, identifier in self._chosen)
