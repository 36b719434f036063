"""The rules for imported rows, which are those of the service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tornado_idv.cli.users.formats import FIELDS, Fields, Row
from tornado_idv.cli.users.import_users import Advance, RejectedRows
from tornado_idv.cli.users.stores import RefusedError
from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import (
    PLAN_FORMAT,
    PROFILE_URL_FORMAT,
    Identifiers,
    is_plan,
    is_profile_url,
)
from tornado_idv.model import User
from tornado_idv.user_store import NumberedUser

_ADVANCE_ROWS = 200
_EXPONENT = re.compile(r"\d([.,]\d+)?[eE]\+?\d+")


def validated(
    rows: Iterator[Row], identifiers: Identifiers, rejected: RejectedRows, advance: Advance
) -> Iterator[NumberedUser]:
    """Yield the valid users, and reject the other rows; at the end `RejectedRows.check` them."""
    read = 0
    for read, (line, fields) in enumerate(rows, start=1):
        user = fields if isinstance(fields, str) else parse_user(fields, identifiers)
        if isinstance(user, str):
            rejected.add(line, user)
        else:
            yield line, user
        if read % _ADVANCE_ROWS == 0:
            advance(read)
    advance(read)
    rejected.valid = read - rejected.count
    rejected.check()


def importable(users: Iterable[User], identifiers: Identifiers) -> Iterator[User]:
    """Yield users that an import would not reject; raises `RefusedError` for another one."""
    for number, user in enumerate(users, start=1):
        fields = (user.nickname, user.card_number, user.plan, user.profile_url)
        reason = parse_user(fields, identifiers)
        if isinstance(reason, str):
            raise RefusedError(
                f"user {number} in the order of nicknames: {reason}; an import would reject this "
                "user; correct the table, then export again"
            )
        yield user


def parse_user(fields: Fields, identifiers: Identifiers) -> User | str:
    """Return the user, or the reason why there is none, which contains no value."""
    nickname, card_number, plan, url = fields
    if not (isinstance(nickname, str) and isinstance(card_number, str) and isinstance(plan, str)):
        values = zip(FIELDS, fields, strict=True)
        name, value = next(each for each in values if not isinstance(each[1], str))
        return f"{name}: missing" if value is None else f"{name}: not text; write it in quotes"
    user = User(plan, card_number, nickname.removeprefix("@"))
    if not (identifiers.accepts(user) and user.nickname.isprintable()):
        return _invalid_identifier(user, identifiers)
    if not is_plan(plan):
        return f"plan: not {PLAN_FORMAT}"
    if url is None or url == "":
        return user
    if is_profile_url(url):
        return User(plan, card_number, user.nickname, url)
    return f"profile_url: not {PROFILE_URL_FORMAT}"


def _invalid_identifier(user: User, identifiers: Identifiers) -> str:
    if not user.nickname.isprintable():
        return "nickname: contains a control character"
    try:
        identifiers.parse_nickname(user.nickname)
    except InvalidFormat:
        return "nickname: not in a valid format; see identifiers.nickname_pattern"
    if re.search(r"\s", user.card_number):
        return "card_number: contains blanks; only digits are allowed"
    if _EXPONENT.fullmatch(user.card_number):
        return (
            "card_number: in exponential notation, by which a spreadsheet has lost digits; export "
            "the column as text"
        )
    return "card_number: not in a valid format; see identifiers.card_length"
