"""One run over all accounts: which of them may be deleted, and why none may."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from tempfile import TemporaryFile
from typing import IO, Any

from tornado_idv.cli.common import RefusedError
from tornado_idv.cli.reconcile.accounts import Account
from tornado_idv.cli.reconcile.state import Sampler, State
from tornado_idv.client import (
    Client,
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    Result,
    Unexpected,
    User,
)
from tornado_idv.errors import IdvError
from tornado_idv.log_format import format_time
from tornado_idv.units import parse_percentage

_FIRST_PAUSE = 2.0
"""Seconds before accounts that could not be determined are asked again; then four times these."""
_MAX_IN_A_ROW = 1000
"""Accounts in a row that could not be determined, after which a run ends."""
_PAUSED_AFTER = 100
_MAX_LISTED = 100
_MAX_DIGITS = 9


class UndeterminedError(IdvError):
    """The run could not determine enough to say which accounts may be deleted."""


@dataclass(frozen=True)
class Share:
    """The largest part of all accounts: a percentage of them or a number."""

    text: str
    percent: Decimal | None
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Share:
        """Return the share of ``5%`` or ``100``; raises `ValueError`."""
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return cls(text, None, int(text))
        try:
            return cls(text, parse_percentage(text))
        except ValueError:
            raise ValueError("neither a number nor a percentage such as 5%") from None

    def is_exceeded(self, count: int, total: int) -> bool:
        """Return whether ``count`` of ``total`` are more than this share."""
        if self.percent is None:
            return count > self.number
        return count * 100 > self.percent * total


@dataclass(frozen=True)
class Bounds:
    """Bounds of a run; ``grace`` is in seconds, ``must_exist`` are identifiers."""

    grace: float
    max_gone: Share
    max_undetermined: Share
    must_exist: Sequence[str]


class Run:
    """Asks for each account, and keeps the rows of those that may be deleted.

    ``is_card`` is whether identifiers are card numbers; ``now`` is Unix time, and ``pause`` sleeps
    for so many seconds. All of `ask`, `check` and `require_users` raise `RefusedError` or
    `UndeterminedError`.
    """

    def __init__(
        self,
        client: Client,
        state: State,
        bounds: Bounds,
        *,
        is_card: bool,
        now: float,
        pause: Callable[[float], object],
    ) -> None:
        self._find_many = client.find_many_cards if is_card else client.find_many
        self._client = client
        self._before = state
        self._bounds = bounds
        self._now = now
        self._pause = pause
        self._sampler = Sampler(state.sample)
        self._counts = Counter[str]()
        self._in_a_row = 0
        self._last_error = ""
        self._degraded = False
        self._gone: dict[str, float] = {}
        self._waiting: list[str] = []
        self._invalid: list[Account] = []
        self._open_spools = ExitStack()
        self._deletable = self._spool()

    def close(self) -> None:
        """Delete the temporary files."""
        self._open_spools.close()

    def _spool(self) -> _Spool:
        return _Spool(self._open_spools.enter_context(TemporaryFile("w+", encoding="utf-8")))

    def require_users(self) -> None:
        """Look up the users that must exist."""
        for each in self._bounds.must_exist:
            find = self._client.find_card if each.isdigit() else self._client.find
            try:
                user: User | None = find(each)
            except ClientError as error:
                raise UndeterminedError(f"{each} of --must-exist: {error}") from None
            if user is None:
                raise RefusedError(
                    f"{each} of --must-exist is not found: the directory does not show all of its"
                    " users; see what has changed there"
                )

    def ask(self, accounts: Iterable[Account], retries: int) -> None:
        """Ask for all accounts, and again for those that could not be determined."""
        left = self._ask(self._counted(accounts))
        for number in range(retries):
            if not left.count or self._degraded:
                break
            self._pause(_FIRST_PAUSE * 4**number)
            left = self._ask(left)
        self._counts["undetermined"] = left.count

    def check(self) -> None:
        """Check the result of the run against its bounds."""
        counts, bounds = self._counts, self._bounds
        total, gone, undetermined = counts["accounts"], counts["gone"], counts["undetermined"]
        if bounds.max_undetermined.is_exceeded(undetermined, total):
            raise UndeterminedError(
                f"{undetermined:,} of {total:,} accounts could not be determined, more than"
                f" --max-undetermined {bounds.max_undetermined.text}; the last: {self._last_error}"
            )
        if self._degraded:
            raise UndeterminedError(
                "a backend of the service has failed within the last ten minutes; see its health,"
                " and run it again ten minutes after it has recovered"
            )
        if self._sampler.is_other_list:
            raise RefusedError(
                "--state is of another list: most of a sample of its accounts are not in this one;"
                " see that the list is complete, or name another file"
            )
        if bounds.max_gone.is_exceeded(gone, total):
            raise RefusedError(
                f"{gone:,} of {total:,} accounts are gone, more than --max-gone"
                f" {bounds.max_gone.text}; if that is right, raise it for this run"
            )

    @property
    def rows(self) -> Iterator[str]:
        """The rows of the accounts that may be deleted."""
        return (each.text for each in self._deletable)

    @property
    def state(self) -> State:
        """The state for the next run."""
        return State(self._before.column, self._gone, self._sampler.sample)

    def record(self) -> dict[str, Any]:
        """Return the result for scripts."""
        names = ("accounts", "found", "gone", "invalid", "undetermined")
        grace = self._bounds.grace
        return {
            **{name: self._counts[name] for name in names},
            "degraded": self._degraded,
            "deletable": self._deletable.count,
            "waiting": [
                {
                    "identifier": each,
                    "gone_since": format_time(self._gone[each]),
                    "deletable_from": format_time(self._gone[each] + grace),
                }
                for each in self._waiting
            ],
            "invalid_identifiers": [
                {"line": each.line, "identifier": each.identifier} for each in self._invalid
            ],
        }

    def _counted(self, accounts: Iterable[Account]) -> Iterator[Account]:
        for each in accounts:
            self._counts["accounts"] += 1
            self._sampler.add(each.identifier)
            yield each

    def _ask(self, accounts: Iterable[Account]) -> _Spool:
        """Ask for these accounts; return those that could not be determined."""
        left = self._spool()
        sent: deque[Account] = deque()

        def identifiers() -> Iterator[str]:
            for each in accounts:
                sent.append(each)
                yield each.identifier

        for result in self._find_many(identifiers()):
            account = sent.popleft()
            self._degraded = self._degraded or result.degraded
            if result.error is None or isinstance(result.error, InvalidFormat):
                self._in_a_row = 0
                self._keep(account, result)
            else:
                self._fail(result.error)
                left.append(account)
        return left

    def _keep(self, account: Account, result: Result) -> None:
        if result.error is not None:
            self._counts["invalid"] += 1
            if len(self._invalid) < _MAX_LISTED:
                self._invalid.append(account)
            return
        if result.user is not None:
            self._counts["found"] += 1
            return
        self._counts["gone"] += 1
        identifier = account.identifier
        since = self._gone[identifier] = self._before.gone.get(identifier, self._now)
        if self._now - since >= self._bounds.grace:
            self._deletable.append(account)
        else:
            self._waiting.append(identifier)

    def _fail(self, error: ClientError) -> None:
        """Count an account that could not be determined; end the run if it is of no use."""
        is_determined = any(self._counts[name] for name in ("found", "gone", "invalid"))
        is_final = isinstance(error, InvalidKey | MissingScope)
        if is_final or (isinstance(error, Unexpected) and not is_determined):
            raise UndeterminedError(str(error))
        self._last_error = str(error)
        self._in_a_row += 1
        if self._in_a_row >= _MAX_IN_A_ROW:
            raise UndeterminedError(
                f"{self._in_a_row:,} accounts in a row could not be determined: {error}"
            )
        if self._in_a_row % _PAUSED_AFTER == 0:
            self._pause(self._in_a_row / _PAUSED_AFTER)


class _Spool:
    """Accounts in a temporary file."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.count = 0

    def append(self, account: Account) -> None:
        """Add an account."""
        self._file.write(f"{json.dumps(account)}\n")
        self.count += 1

    def __iter__(self) -> Iterator[Account]:
        self._file.seek(0)
        return (Account(*json.loads(line)) for line in self._file)
