"""One run of ``tornado-idv reconcile``. It finds accounts to delete, or refuses to list any."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from itertools import tee
from math import inf
from time import sleep, time
from typing import Any

from tornado_idv.cli.common import RefusedError
from tornado_idv.client import (
    Client,
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    Result,
    Unexpected,
)
from tornado_idv.features.reconcile.accounts import Account
from tornado_idv.features.reconcile.state import Absence, Sampler, State, UndeterminedError
from tornado_idv.kit.option_values import Share
from tornado_idv.log_format import format_time

_FIRST_PAUSE = 2.0
"""Seconds before the first retry of undetermined accounts. Each later pause is 4 times longer."""
_MAX_IN_A_ROW = 1000
"""The run fails after this many undetermined accounts in a row."""
_PAUSED_AFTER = 100
"""The run pauses after every 100 undetermined accounts in a row, each time for longer."""
_MAX_LISTED = 100
MAX_PRINTED = 5
_MAX_CLOCK_DIFFERENCE = 60.0
"""Maximum difference between the clocks of this machine and of the service, in seconds."""


class Run:
    """Looks up the user of each account, and keeps the rows of accounts whose users are gone.

    ``before`` is the last state. A user who is not gone is removed from it. ``grace`` is in
    seconds. `ask`, `check` and `require_users` raise `RefusedError` or `UndeterminedError`.
    """

    def __init__(
        self, client: Client, before: State, *, by_card: bool, grace: float, min_runs: int
    ) -> None:
        self._find_many = client.find_many_cards if by_card else client.find_many
        self._client, self._before, self._by_card = client, before, by_card
        self._grace, self._min_runs = grace, min_runs if grace else 1
        self._now, self._is_clock_checked = time(), False
        self._sampler = Sampler(before.sample)
        self._counts = dict.fromkeys(("accounts", "found", "gone", "invalid", "undetermined"), 0)
        self._in_a_row, self._last_error = 0, ""
        self._degraded = False
        self._gone: list[Account] = []
        self._since: dict[str, Absence] = {}
        self._others: set[str] = set()
        """Identifiers found or undetermined in at least one row. With a ``grace`` of 0, `rows`
        omits all rows with these identifiers. With a longer ``grace``, the set is empty."""
        self._invalid: list[Account] = []
        self._shortest_found = inf

    def require_users(self, identifiers: Iterable[str]) -> None:
        """Raise an error unless all users of --must-exist are found."""
        for each in identifiers:
            find = self._client.find_card if each.isdigit() else self._client.find
            try:
                user = find(each)
            except ClientError as error:
                raise UndeterminedError(f"--must-exist: {each}: {error}") from None
            if user is None:
                raise RefusedError(
                    f"--must-exist: {each} is not found, so a backend does not show all of its "
                    "users; check its contents and permissions"
                )

    def ask(self, accounts: Iterable[Account], retries: int) -> None:
        """Look up all accounts. Repeat the lookups of undetermined accounts."""
        self._determine(self._counted(accounts), retries)

    def confirm(self, after: float, retries: int) -> None:
        """Wait ``after`` seconds, and repeat the lookups of accounts that may be deleted.

        If a backend is empty for a moment, the service caches "not found" for existing users until
        the next lookup of the backend's canary. The second lookup is meant to find these users.
        """
        listed = [each for each in self._gone if self._may_be_deleted(each.identifier)]
        if listed and after:
            # The second lookup counts these accounts again.
            self._gone = [each for each in self._gone if not self._may_be_deleted(each.identifier)]
            self._counts["gone"] -= len(listed)
            sleep(after)
            self._determine(listed, retries)

    def _determine(self, accounts: Iterable[Account], retries: int) -> None:
        left = self._ask(accounts)
        for number in range(retries):
            if not left or self._degraded:  # `check` refuses a degraded run anyway
                break
            sleep(_FIRST_PAUSE * 4**number)
            left = self._ask(left)
        self._counts["undetermined"] += len(left)
        for each in left:
            self._begin_again(each.identifier)

    def check(self, max_gone: Share, max_undetermined: Share, max_invalid: Share) -> None:
        """Raise an error if the run exceeds a limit or is not reliable.

        Invalid identifiers come first, because a wrong ``--column`` is the most likely mistake.
        """
        counts = self._counts
        gone, undetermined, invalid = counts["gone"], counts["undetermined"], counts["invalid"]
        if max_invalid.is_exceeded(invalid, counts["accounts"]):
            raise RefusedError(
                f"{invalid:,} of {counts['accounts']:,} identifiers are not valid, more than"
                f" --max-invalid {max_invalid.text}{self._cause()}"
            )
        total = counts["accounts"] - invalid
        # A run without any result is refused, even if --max-undetermined permits it.
        if max_undetermined.is_exceeded(undetermined, total) or total == undetermined > 0:
            raise UndeterminedError(
                f"{undetermined:,} of {total:,} accounts could not be determined, more than"
                f" --max-undetermined {max_undetermined.text}; the last: {self._last_error}"
            )
        if self._degraded:
            raise UndeterminedError(
                "a backend of the service has failed within the last ten minutes; see its health,"
                " and repeat the run ten minutes after its recovery"
            )
        if self._sampler.is_other_list:
            raise RefusedError(
                "--state is for another list: most accounts in a sample of the last run are not "
                "in this list; check that the list is complete, or name another state file"
            )
        if max_gone.is_exceeded(gone, total - undetermined):
            short = sum(len(each.identifier) < self._shortest_found for each in self._gone)
            cause = "if these users are really gone, raise the limit for this run"
            if self._by_card and counts["found"] and short:
                cause = f"{short:,} are shorter than all found numbers: were leading zeros lost?"
            raise RefusedError(
                f"{gone:,} of {total - undetermined:,} accounts are gone, more than --max-gone"
                f" {max_gone.text}; {cause}"
            )

    def _cause(self) -> str:
        """Return the likely cause of invalid identifiers with some examples, for the message."""
        texts = [each.identifier for each in self._invalid]
        cause = "is this the right column?"
        if self._by_card and any("e+" in each.lower() for each in texts):
            cause = "a spreadsheet has rounded card numbers: export them as text"
        elif not self._by_card and not any(each.startswith("@") for each in texts):
            cause = "add --by nickname if they are nicknames without @, or name another column"
        return "\n  ".join([f"; {cause}", *map(str, self._invalid[:MAX_PRINTED])])

    @property
    def rows(self) -> list[str]:
        """The rows of the accounts that may be deleted."""
        return [each.text for each in self._gone if self._may_be_deleted(each.identifier)]

    @property
    def state(self) -> State:
        """The state for the next run."""
        return State(self._before.column, self._since, self._sampler.sample)

    def record(self) -> dict[str, Any]:
        """Return the result as a JSON record for scripts."""
        return {
            **self._counts,
            "degraded": self._degraded,
            "deletable": len(self.rows),
            "waiting": [
                {
                    "identifier": each,
                    "gone_since": format_time(absence.since),
                    "deletable_from": format_time(absence.since + self._grace),
                    "runs": absence.runs,
                }
                for each, absence in self._since.items()
                if not self._may_be_deleted(each)
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

    def _ask(self, accounts: Iterable[Account]) -> list[Account]:
        """Look these accounts up. Return the accounts that could not be determined."""
        left: list[Account] = []
        # The results have the order of the accounts, but arrive some batches later.
        accounts, sent = tee(accounts)
        results = self._find_many(each.identifier for each in accounts)
        for result, account in zip(results, sent, strict=True):
            if self._client.date and not self._is_clock_checked:
                self._check_clock()
            if result.degraded is None and result.error is None:
                raise UndeterminedError(
                    "the service is older than version 1.0: it cannot report that it is degraded"
                )
            self._degraded = self._degraded or result.degraded is True
            if result.error is None or isinstance(result.error, InvalidFormat):
                self._in_a_row = 0
                self._keep(account, result)
            else:
                self._fail(result.error)
                left.append(account)
        return left

    def _keep(self, account: Account, result: Result) -> None:
        identifier = account.identifier
        if result.error is not None:
            self._counts["invalid"] += 1
            if len(self._invalid) < _MAX_LISTED:
                self._invalid.append(account)
        elif result.user is not None:
            self._counts["found"] += 1
            self._shortest_found = min(self._shortest_found, len(identifier))
            self._begin_again(identifier)
        else:
            self._counts["gone"] += 1
            self._gone.append(account)
            before = self._before.gone.get(identifier, Absence(self._now, 0))
            # `before` stays: a user in several rows, or looked up twice, counts as one run.
            self._since[identifier] = Absence(before.since, before.runs + 1)

    def _begin_again(self, identifier: str) -> None:
        """Restart the grace of a user who was found or undetermined in this run."""
        self._before.gone.pop(identifier, None)
        self._since.pop(identifier, None)
        if not self._grace:
            self._others.add(identifier)

    def _may_be_deleted(self, identifier: str) -> bool:
        absence = self._since.get(identifier)
        return (
            absence is not None
            and identifier not in self._others
            and self._now - absence.since >= self._grace
            and absence.runs >= self._min_runs
        )

    def _check_clock(self) -> None:
        """Raise `UndeterminedError` if the clocks of this machine and of the service differ."""
        self._is_clock_checked = True
        with suppress(ValueError):
            difference = abs(time() - parsedate_to_datetime(self._client.date).timestamp())
            if difference > _MAX_CLOCK_DIFFERENCE:
                raise UndeterminedError(
                    f"the clocks of this machine and of the service differ by {difference:,.0f} s:"
                    " the time for which a user has been gone cannot be determined"
                )

    def _fail(self, error: ClientError) -> None:
        """Count an undetermined account. If its error affects all lookups, raise an exception."""
        is_determined = any(self._counts[name] for name in ("found", "gone", "invalid"))
        # An unexpected response to the first lookups means a wrong URL, or the page of a proxy.
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
            sleep(self._in_a_row / _PAUSED_AFTER)
