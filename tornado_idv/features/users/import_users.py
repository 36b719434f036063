"""The import of a list. It changes a user store so that it contains the users in the list."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import NamedTuple

from tornado_idv.cli.common import RefusedError, counted
from tornado_idv.errors import StartError
from tornado_idv.features.users.formats import Row, Unreadable
from tornado_idv.features.users.rows import is_nickname, named_users, parse_user
from tornado_idv.features.users.staging import ListedRow, Rejected, Staging
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.user_store import UserStore, UserTransaction
from tornado_idv.kit.files import replaced_file
from tornado_idv.kit.option_values import Share
from tornado_idv.model import Query
from tornado_idv.units import parse_percentage

_LISTED = 20
"""Maximum number of rows or plans to print. A wrong column may contain thousands of "plans"."""


class Result(NamedTuple):
    """``imported``, ``rejected`` and ``not_found`` count rows. The other members count users."""

    imported: int
    added: int
    updated: int
    removed: int
    kept: int
    rejected: int
    not_found: int


@dataclass(frozen=True, slots=True)
class Import:
    """An import of a list, with its source and its limits.

    ``canaries`` are users that must exist after the import.
    """

    file: str
    max_rejected: Share | None
    """The maximum number of rejected rows. By default, 1 % of the rows may be rejected, but no row
    of a user who is not stored yet."""
    max_removed: Decimal | None
    expect_rows: int | None
    canaries: Mapping[str, Query]
    merges: bool
    is_dry_run: bool
    on_change: Callable[[], object] = lambda: None
    """A function to call before and after the users change. It may raise `StartError`."""

    @property
    def source(self) -> str:
        """The name of the list in messages."""
        return "standard input" if self.file == "-" else self.file

    def beside(self, suffix: str) -> Path:
        """Return the path of a report file next to the list.

        If the list is a pipe, such as ``/dev/fd/63``, the report is in the current folder.
        """
        path = Path(self.file)
        if self.file == "-" or path.absolute().parts[1] in {"dev", "proc"}:
            return Path(f"stdin.{suffix}")
        return path.with_name(f"{path.name}.{suffix}")

    def run(
        self, rows: Iterator[Row], identifiers: Identifiers, store: UserStore
    ) -> tuple[Result, list[str]]:
        """Import the list. Return the numbers of changes, and notes for the operator.

        After an exception, or if the process is killed, nothing is changed. Raises `RefusedError`.
        """
        self._write_rejected(())
        try:
            with closing(Staging(folds=identifiers.nickname_case == "fold")) as staging:
                count = self._stage(staging, rows, identifiers)
                with store.transaction(in_place=self.merges) as target:
                    staging.compare(target, merges=self.merges)
                    rejected = staging.rejected()
                    lost = [each for each in rejected if each[2]]
                    self._write_rejected(rejected)
                    if self.is_dry_run:
                        with replaced_file(self.beside("changes")) as file:
                            file.writelines(staging.changes())
                    self._review(staging, count, rejected, lost, store.max_removed)
                    changed = staging.apply(target)
                    *_, kept = staging.numbers()
                    result = Result(count - len(rejected), *changed, kept, len(rejected), len(lost))
                    notes = [*self._notes(staging, result, lost)]
                    if not self.is_dry_run:  # the last step: nothing can fail after it
                        self._commit(target)
                return result, notes
        except sqlite3.Error as error:
            raise StartError(f"temporary file: {error}; SQLITE_TMPDIR sets its folder") from None
        except OSError as error:
            name = error.filename or self.source
            raise StartError(f"{name}: cannot be used: {error.strerror}") from None
        except UnicodeError:
            raise RefusedError(f"{self.source}: cannot be decoded; add its --encoding") from None

    def _commit(self, target: UserTransaction) -> None:
        """Make the changes visible, with `on_change` before and after."""
        # If the first call fails, nothing is changed. The second call drops results of old users
        # that were stored between the first call and the commit.
        self.on_change()
        try:
            target.commit()
        finally:
            with suppress(StartError, OSError):  # too late to refuse: the users have changed
                self.on_change()

    def _stage(self, staging: Staging, rows: Iterator[Row], identifiers: Identifiers) -> int:
        """Add all rows to the staging database. Return their number."""
        count = 0

        def listed() -> Iterator[ListedRow]:
            nonlocal count
            for count, (line, row) in enumerate(rows, start=1):
                if isinstance(row, Unreadable):
                    named = named_users(row, identifiers)
                    staging.reject(count, line, row.reason, named, is_unclear=2)
                    continue
                user = parse_user(row, identifiers)
                if isinstance(user, str):
                    is_clear = is_nickname(str(row[0] or "").removeprefix("@"), identifiers)
                    named = named_users(row, identifiers)
                    staging.reject(count, line, user, named, is_unclear=not is_clear)
                else:
                    url = user.profile_url or (None if row[3] is None else "")
                    yield count, line, user.nickname, user.card_number, user.plan, url

        staging.fill(listed())
        return count

    def _write_rejected(self, rejected: Sequence[Rejected]) -> None:
        """Write the report of rejected rows, or delete an old report if no row is rejected."""
        path = self.beside("rejected")
        if rejected:
            with replaced_file(path) as file:
                file.writelines(f"{self.source}:{line}: {reason}\n" for line, reason, _ in rejected)
        elif path.exists():  # on a read-only file system, unlink also fails for a missing file
            path.unlink(missing_ok=True)

    def _review(
        self,
        staging: Staging,
        rows: int,
        rejected: Sequence[Rejected],
        unstored: Sequence[Rejected],
        max_removed: str,
    ) -> None:
        """Raise `RefusedError` if the import looks wrong.

        An empty list never replaces the users: it is a wrong or truncated file.
        """
        max_rejected = self.max_rejected or Share.parse("1%")
        stored, removed, _ = staging.numbers()
        lost = [each for each, query in self.canaries.items() if not staging.will_have(query)]
        is_named = unstored and not self.max_rejected
        seen = ""
        for line, reason, _ in (unstored if is_named else rejected)[:1]:
            seen = f"; first error: line {line}: {reason}; see {self.beside('rejected')}"
        percent = parse_percentage(max_removed) if self.max_removed is None else self.max_removed
        allowed = (stored * percent / 100).to_integral_value(ROUND_CEILING)
        if self.expect_rows not in {None, rows}:
            problem = f"has {counted(rows, 'row')}, and not the {self.expect_rows} of --expect-rows"
        elif len(rejected) == rows:
            problem = f"has no valid user{seen}"
        elif is_named:
            problem = (
                f'{_unstored(unstored)} would be "not found" after the import; correct the list, '
                f"or accept this with --max-rejected {len(rejected)}{seen}"
            )
        elif max_rejected.is_exceeded(len(rejected), rows):
            more = f"more than {max_rejected.text}"
            problem = f"{len(rejected):,} of {rows:,} rows are rejected, {more}{seen}"
        elif lost:
            problem = f'does not have {lost[0]}; without it, "not found" is not trusted'
        elif removed > allowed:
            share = -(-removed * 100 // stored)
            problem = (
                f"{removed:,} of {stored:,} users would be removed, more than {percent}%; list "
                f"them with --dry-run; if they are right, add --max-removed {share}%, or --merge "
                "to keep them"
            )
        else:
            return
        changes = f"; see {self.beside('changes')}" if self.is_dry_run else ""
        raise RefusedError(f"{self.source}: {problem}; nothing was changed{changes}")

    def _notes(self, staging: Staging, result: Result, lost: Sequence[Rejected]) -> Iterator[str]:
        if result.kept:
            whose = "whose row was" if result.kept == 1 else "whose rows were"
            yield f"Kept {counted(result.kept, 'user')} {whose} rejected."
        if result.rejected:
            yield f"Rejected {counted(result.rejected, 'row')}; see {self.beside('rejected')}."
        if lost:
            yield f'{_unstored(lost)} {"is" if len(lost) == 1 else "are"} "not found".'
        if staging.held:
            yield (
                f"Removed no user: {counted(staging.unclear, 'rejected row')} may be about any of "
                f"{counted(staging.held, 'user')} missing from the list; correct or delete the "
                "rejected rows."
            )
        plans = staging.plans()
        listed = ", ".join(f"{plan} {count:,}" for plan, count in plans)
        yield f"Plans: {listed if len(plans) <= _LISTED else f'{len(plans)} different ones'}."


def _unstored(rows: Sequence[Rejected]) -> str:
    lines = ", ".join([str(line) for line, *_ in rows[:_LISTED]] + ["…"] * (len(rows) > _LISTED))
    return f"{counted(len(rows), 'user')} of the list (line{'s' * (len(rows) > 1)} {lines})"
