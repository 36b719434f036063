"""A model of `users import`: random stores and lists, and what a store must be afterwards."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

SITE = "https://elsewhere.example"
_NICKNAMES = ("ana", "Ben", "carl", "dora", "Emil", "fay", "gina", "hugo")
_CARDS = [str(number) for number in range(10, 22)]
_PLANS = ("Free", "Pro", "Team")
_URLS = (None, f"{SITE}/1", f"{SITE}/2")


class Stored(NamedTuple):
    """A row of the table. A new one has the number 0, and ``since`` has no value."""

    id: int
    nickname: str
    card_number: str
    plan: str
    profile_url: str | None
    since: str | None


@dataclass(frozen=True)
class ListedRow:
    """A row of the list, and what it names: of a valid row, its nickname and card number."""

    fields: tuple[str | None, ...]
    nickname: str | None
    card_number: str | None
    is_valid: bool = True
    is_clear: bool = True

    @property
    def texts(self) -> tuple[str, str, str, str | None]:
        nickname, card, plan, url = self.fields
        return str(nickname), str(card), str(plan), url


class Expected(NamedTuple):
    stored: list[Stored]
    valid: int
    kept: int
    not_found: int


def random_store(chance: random.Random) -> list[Stored]:
    count = chance.randrange(len(_NICKNAMES))
    names, cards = chance.sample(_NICKNAMES, count), chance.sample(_CARDS, count)
    return [
        Stored(number, *each, chance.choice(_PLANS), chance.choice(_URLS), "then")
        for number, each in enumerate(zip(names, cards, strict=True), start=chance.randrange(1, 50))
    ]


def random_rows(chance: random.Random, stored: Sequence[Stored], *, fold: bool) -> list[ListedRow]:
    """Return rows for most stored users, some with another's card number, and for new ones."""
    has_url, rows = chance.random() < 0.7, []
    cards = {each.nickname: each.card_number for each in stored if chance.random() < 0.9}
    for name in chance.sample(_NICKNAMES, chance.randrange(3)):
        cards[name] = chance.choice(_CARDS)
    moved = [name for name in cards if chance.random() < 0.5]
    passed = chance.sample([cards[name] for name in moved], len(moved))
    cards |= zip(moved, passed, strict=True)
    cards |= {name: chance.choice(_CARDS) for name in moved[:1]}
    for name, card in cards.items():
        nickname = name.swapcase() if fold and chance.random() < 0.3 else name
        url = (chance.choice(_URLS) or "") if has_url else None
        row = ListedRow((nickname, card, chance.choice(_PLANS), url), nickname, card)
        rows.append(_spoiled(chance, row) if chance.random() < 0.2 else row)
        if chance.random() < 0.1:
            rows.append(replace(row, fields=(nickname, card, "Other", url)))
    chance.shuffle(rows)
    return rows


def _spoiled(chance: random.Random, row: ListedRow) -> ListedRow:
    nickname, card, plan, url = row.texts
    bad = replace(row, is_valid=False)
    unclear = replace(bad, is_clear=False)
    return chance.choice(
        [
            replace(bad, fields=(nickname, card, "", url)),
            replace(bad, fields=(nickname, "4.0001E+15", plan, url), card_number=None),
            replace(bad, fields=(nickname, f"{card[0]}-{card[1]}", plan, url)),
            replace(bad, fields=(f"@{nickname}", f"'{card}\u00a0", plan, url)),
            replace(bad, fields=(nickname, f"{card},00", plan, url)),
            replace(bad, fields=(nickname, "", plan, url), card_number=None),
            replace(unclear, fields=(f"{nickname}\udcff", card, plan, url), nickname=None),
            replace(unclear, fields=(f"\u00a0{nickname} ", card, plan, url)),
            replace(unclear, fields=("", "", plan, url), nickname=None, card_number=None),
        ]
    )


def _is_found(row: ListedRow, users: Sequence[Stored], *, fold: bool) -> bool:
    """Return whether what a rejected row names is that of stored users."""
    names = {user.nickname.lower() if fold else user.nickname for user in users}
    has_nickname = (row.nickname.lower() if fold and row.nickname else row.nickname) in names
    if row.card_number is None:
        return has_nickname
    has_card = row.card_number in {user.card_number for user in users}
    return has_card and (has_nickname or not row.is_clear)


def imported(
    stored: Sequence[Stored], rows: Sequence[ListedRow], *, merges: bool, fold: bool
) -> Expected:
    """Return the table after the import of a list, by the rules and without any haste."""

    def key(nickname: str | None) -> str | None:
        return nickname.lower() if fold and nickname else nickname

    def clash(one: ListedRow, other: ListedRow) -> bool:
        return one is not other and (
            None is not key(one.nickname) == key(other.nickname)
            or None is not one.card_number == other.card_number
        )

    valid = [row for row in rows if row.is_valid and not any(clash(row, other) for other in rows)]

    def names(row: ListedRow, user: Stored) -> bool:
        return key(row.nickname) == key(user.nickname) or row.card_number == user.card_number

    def has_row(user: Stored) -> bool:
        return any(key(row.nickname) == key(user.nickname) for row in valid)

    unclear = [
        row for row in rows if not row.is_clear and not any(names(row, user) for user in stored)
    ]
    wrong = [row for row in rows if row not in valid]
    while True:
        taken_rows = [row for row in rows if row not in valid and row not in wrong]
        named = [
            user
            for user in stored
            if not has_row(user)
            and (
                any(names(row, user) for row in wrong)
                or any(key(row.nickname) == key(user.nickname) for row in taken_rows)
            )
        ]
        held = [u for u in stored if (merges or unclear) and not has_row(u)]
        stays = [*named, *(user for user in held if user not in named)]
        taken = [r for r in valid if any(r.card_number == user.card_number for user in stays)]
        if not taken:
            break
        valid = [row for row in valid if row not in taken]
    wrong = [row for row in rows if row not in valid]
    lost = [row for row in wrong if not _is_found(row, stays, fold=fold)]
    after = list(stays)
    for row in valid:
        nickname, card, plan, url = row.texts
        old = next((user for user in stored if key(user.nickname) == key(nickname)), None)
        if old:
            new_url = old.profile_url if url is None else url or None
            after.append(
                old._replace(nickname=nickname, card_number=card, plan=plan, profile_url=new_url)
            )
        else:
            after.append(Stored(0, nickname, card, plan, url or None, None))
    return Expected(
        sorted(after, key=lambda user: user.nickname), len(valid), len(named), len(lost)
    )


def script(row_id: str, stored: Sequence[Stored]) -> str:
    """Return SQL that makes the table."""
    lines = [
        f"DROP TABLE users; CREATE TABLE users ({row_id}, nickname TEXT NOT NULL UNIQUE,",
        "card_number TEXT NOT NULL UNIQUE CHECK (length(card_number) = 2), plan TEXT,",
        "profile_url TEXT, since TEXT);",
    ]
    for user in stored:
        url = f"'{user.profile_url}'" if user.profile_url else "NULL"
        values = f"{user.id}, '{user.nickname}', '{user.card_number}', '{user.plan}', {url}, 'then'"
        lines.append(f"INSERT INTO users VALUES ({values});")
    if stored and "IDENTITY" in row_id:
        lines.append("ALTER TABLE users ALTER id RESTART WITH 1000;")
    return "\n".join(lines)


def read(run: Callable[[str], Sequence[Sequence[Any]]]) -> list[Stored]:
    """Return the table, with 0 in place of the numbers of new rows."""
    number = "CASE WHEN since IS NULL THEN 0 ELSE id END"
    rows = run(f"SELECT {number}, nickname, card_number, plan, profile_url, since FROM users")
    users = [Stored(int(number), *others) for number, *others in rows]
    return sorted(users, key=lambda user: user.nickname)
