"""The command ``tornado-idv users compare``. It reports differences between two backends."""

import asyncio
import random
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from heapq import merge, nlargest
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import click

from tornado_idv.cli.backends import backend_named, reporting
from tornado_idv.cli.common import Record, config_option, examples, json_option, show
from tornado_idv.errors import Broken
from tornado_idv.features.users.stores import Stores
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.kit.comparison import Comparison, ComparisonResult
from tornado_idv.kit.comparison import compare as compare_users
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import ByCard, ByNickname, User
from tornado_idv.registry import build_backend, opened_backend

_LISTED = 100
"""Maximum number of users to list for each kind of difference. Further users are only counted."""
_TITLES: Mapping[ComparisonResult, str] = {
    "missing": "missing from {second}",
    "extra": "extra in {second}",
    "differs": "differs",
}
"""Titles of the results that count as differences."""


@click.command(epilog=examples("users compare old new --sample 1000"))
@click.argument("first")
@click.argument("second")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look up N random users of FIRST in SECOND. SECOND may be of any kind.",
)
@config_option
@json_option
def compare(
    *, first: str, second: str, sample: int | None, config_path: Path, as_json: bool
) -> None:
    """Report the differences between the users of two backends.

    Users are compared as they appear in responses. A user is missing if only FIRST has it, and
    extra if only SECOND has it. A user in both differs if a field is different. Up to 100 users of
    each kind are listed. With --sample, a user is unverified if its lookup in SECOND fails, for
    example because two users match.

    Exit codes: 0 no difference; 1 differences; 2 wrong use; 3 could not be determined, or users
    are unverified.
    """
    with reporting(as_json=as_json), ExitStack() as opened:
        stores = Stores(config_path)
        if sample is None:
            sides = [
                opened.enter_context(closing(_in_order(stores, name, side)))
                for side, name in enumerate((first, second))
            ]
            rows = groupby(merge(*sides, key=itemgetter(0)), key=itemgetter(0))
            pairs = ({row[1]: row[2] for row in same_key} for _, same_key in rows)
            differences = stores.identifiers.differences
            results: Iterable[Comparison] = (
                compare_users(pair.get(0), pair.get(1), differences) for pair in pairs
            )
        else:
            chooser = random.Random(1)  # noqa: S311 no secret
            everyone = opened.enter_context(stores.records(first))
            chosen = nlargest(sample, everyone, key=lambda _: chooser.random())
            results = asyncio.run(_look_up(stores, chosen, second))
        record = {"first": first, "second": second, **_differences(results)}
    show(record, _lines(record), as_json=as_json)
    if any(record[kind] for kind in _TITLES):
        sys.exit(Exit.NO)
    sys.exit(Exit.UNDETERMINED if record["unverified"] else Exit.DONE)


def _differences(results: Iterable[Comparison]) -> Record:
    """Return the number of differences of each kind, and up to `_LISTED` nicknames for each."""
    record: Record = {"compared": 0, "unverified": 0, **dict.fromkeys(_TITLES, 0), "users": {}}
    for each in results:
        record["compared"] += 1
        record["unverified"] += each.result == "target_failed"
        if each.result not in _TITLES or each.user is None:
            continue
        record[each.result] += 1
        if record[each.result] <= _LISTED:
            nickname = f"@{each.user.nickname}"
            text = f"{nickname}: {', '.join(each.fields)}" if each.fields else nickname
            record["users"].setdefault(each.result, []).append(text)
    return record


def _lines(record: Record) -> Iterator[str]:
    yield "compared: {compared:,} users of {first} and {second}".format_map(record)
    if record["unverified"]:
        yield "unverified, lookups in {second} failed: {unverified:,}".format_map(record)
    for kind, title in _TITLES.items():
        yield f"{title.format_map(record)}: {record[kind]:,}"
        listed = record["users"].get(kind, [])
        yield from (f"  {each}" for each in listed)
        if record[kind] > len(listed):
            yield f"  and {record[kind] - len(listed):,} more"


def _in_order(stores: Stores, name: str, side: int) -> Generator[tuple[bytes, int, User]]:
    """Yield the users of a backend with their sort keys. ``side`` is 0 for FIRST, 1 for SECOND."""
    last = b""
    with stores.records(name) as users:
        for user in users:
            key = stores.identifiers.shown(user)[0].encode()
            if key <= last:
                reason = "two rows have the same nickname, or the rows are not sorted"
                raise Broken(reason, backend=name)
            last = key
            yield key, side, user


async def _look_up(stores: Stores, users: Iterable[User], name: str) -> list[Comparison]:
    """Compare each user with the results of lookups in a backend by nickname and card number."""
    options = backend_named(stores.backends, name)
    loop, results = asyncio.get_running_loop(), []
    async with opened_backend(build_backend(stores.kinds, options)) as backend:
        guard = Guard(backend, stores.identifiers.accepts)
        for user in users:
            result = Comparison("match", user=user)
            nickname, card_number, *_ = stores.identifiers.shown(user)
            for query in (ByNickname(nickname), ByCard(card_number)):
                if guard.serves(query) and result.result == "match":
                    found: User | Broken | None
                    try:
                        answer = await guard.find(query, loop.time() + options.timeout + 1)
                        found = None if answer is None else answer.user
                    except Broken as error:  # for example, two users match the query
                        found = error
                    result = compare_users(user, found, stores.identifiers.differences)
            results.append(result)
    return results
