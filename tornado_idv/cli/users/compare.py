"""``tornado-idv users compare``: what differs between two backends."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import click

from tornado_idv.cli.common import Record, config_option, json_option, show
from tornado_idv.cli.users.formats import FIELDS
from tornado_idv.cli.users.stores import Stores, reporting
from tornado_idv.errors import Broken
from tornado_idv.identifiers import Identifiers, fold_case
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.commands import Exit
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import ByCard, ByNickname, User
from tornado_idv.registry import build_backends, open_backends

_LISTED = 100
"""Users that are listed for each kind of difference; the others are only counted."""
_SEED = 1


@click.command()
@click.argument("first")
@click.argument("second")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look up N users of FIRST, chosen at random, in SECOND, which may be of any kind.",
)
@config_option
@json_option
def compare(
    *, first: str, second: str, sample: int | None, config_path: Path, as_json: bool
) -> None:
    """Report what differs between the users of two backends.

    All users are compared, as responses would show them. The users that differ are listed, up to
    100 for each kind of difference.

    Exit codes: 0 no difference; 1 differences; 2 wrong use; 3 could not be determined.
    """
    with reporting(as_json=as_json):
        stores = Stores.of_config(config_path)
        report = Report(first, second, stores.identifiers)
        if sample is None:
            ones, others = _in_order(stores, report, 0), _in_order(stores, report, 1)
            rows = merge(ones, others, key=itemgetter(0))
            for _, same_key in groupby(rows, key=itemgetter(0)):
                users = {side: user for _, side, user in same_key}
                report.add(users.get(0), users.get(1))
        else:
            chosen = _sample(stores.store(first).records(), sample)
            asyncio.run(_compare_sample(stores, report, chosen))
    show(report.record(), report.lines(), as_json=as_json)
    sys.exit(Exit.NO if any(report.counts.values()) else Exit.DONE)


@dataclass
class Report:
    """The differences: counted, and the first of each kind by nickname."""

    first: str
    second: str
    identifiers: Identifiers
    compared: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: {"only_in_first": 0, "only_in_second": 0, "different": 0}
    )
    listed: dict[str, list[str]] = field(default_factory=dict, repr=False)

    def add(self, one: User | None, other: User | None) -> None:
        """Compare a user of the first backend with that of the second."""
        self.compared += 1
        if one is not None and other is not None:
            names = different(one, other, self.identifiers)
            if names:
                self._list("different", f"@{one.nickname}: {', '.join(names)}")
        elif one is not None:
            self._list("only_in_first", f"@{one.nickname}")
        elif other is not None:
            self._list("only_in_second", f"@{other.nickname}")

    def key(self, user: User) -> bytes:
        """Return the nickname as lookups compare it, in the order of the stores."""
        return _shown(user, self.identifiers)[0].encode()

    def record(self) -> Record:
        """Return the report for scripts."""
        names = {"first": self.first, "second": self.second, "compared": self.compared}
        return {**names, **self.counts, "users": self.listed}

    def lines(self) -> Iterator[str]:
        """Yield the report for a terminal."""
        yield f"compared: {self.compared} users of {self.first} and {self.second}"
        titles = (f"only in {self.first}", f"only in {self.second}", "different")
        for title, (kind, count) in zip(titles, self.counts.items(), strict=True):
            yield f"{title}: {count}"
            listed = self.listed.get(kind, [])
            yield from (f"  {each}" for each in listed)
            if count > len(listed):
                yield f"  and {count - len(listed)} more"

    def _list(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        listed = self.listed.setdefault(kind, [])
        if len(listed) < _LISTED:
            listed.append(text)


def different(one: User, other: User, identifiers: Identifiers) -> list[str]:
    """Return the fields that a response for one user and for the other one differ in."""
    values = zip(FIELDS, _shown(one, identifiers), _shown(other, identifiers), strict=True)
    return [name for name, a, b in values if a != b]


def _shown(user: User, identifiers: Identifiers) -> tuple[str, str, str, str]:
    """Return the fields as responses show them, also a profile URL that is derived."""
    folds = identifiers.nickname_case == "fold"
    nickname = fold_case(user.nickname) if folds else user.nickname
    url = identifiers.profile_url(User(user.plan, user.card_number, nickname, user.profile_url))
    return nickname, user.card_number, user.plan, url


def _in_order(stores: Stores, report: Report, side: int) -> Iterator[tuple[bytes, int, User]]:
    """Yield the users of a backend, with their keys and its place among the two."""
    name, last = (report.first, report.second)[side], b""
    for user in stores.store(name).records():
        key = report.key(user)
        if key <= last:
            raise Broken("two rows have one nickname, or the rows are not in order", backend=name)
        last = key
        yield key, side, user


async def _compare_sample(stores: Stores, report: Report, users: Iterable[User]) -> None:
    """Look users up by nickname and by card number, as the service does."""
    options: BackendOptions = stores.options(report.second)
    async with open_backends(build_backends(stores.kinds, [options])) as (backend,):
        guard = Guard(backend, stores.identifiers.accepts)
        for user in users:
            found = await _find(guard, report.key(user).decode(), user.card_number)
            # The query that finds another user, or none, counts.
            others = (
                each for each in found if each is None or different(user, each, report.identifiers)
            )
            report.add(user, next(others, user))


async def _find(guard: Guard, nickname: str, card_number: str) -> list[User | None]:
    """Return the results of the queries that the backend serves."""
    found: list[User | None] = []
    for query in (ByNickname(nickname), ByCard(card_number)):
        if guard.serves(query):
            deadline = asyncio.get_running_loop().time() + guard.backend.options.timeout + 1
            answer = await guard.find(query, deadline)
            found.append(None if answer is None else answer.user)
    return found


def _sample(users: Iterator[User], size: int) -> list[User]:
    """Return users at random, each with the same probability, the same ones each time."""
    chooser = random.Random(_SEED)  # noqa: S311 no secret
    chosen = list(islice(users, size))
    for number, user in enumerate(users, start=len(chosen) + 1):
        place = chooser.randrange(number)
        if place < size:
            chosen[place] = user
    return chosen
