"""Validation of the rows of a list, and a search for the users named in invalid rows."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from tornado_idv.cli.common import RefusedError
from tornado_idv.errors import InvalidFormat
from tornado_idv.features.users.formats import Fields, Unreadable
from tornado_idv.identifiers import (
    FIELDS,
    PLAN_FORMAT,
    PROFILE_URL_FORMAT,
    Identifiers,
    is_plan,
    is_profile_url,
)
from tornado_idv.model import Query, User

_NOT_UTF8 = "not UTF-8; if the list has another encoding, add --encoding, such as cp1252"
_FAULTS = (
    (re.compile(r"\s*\Z"), "empty"),
    (re.compile(r".*[\udc80-\udcff]", re.DOTALL), _NOT_UTF8),
    (re.compile(r".*[\x00-\x1f\x7f-\x9f]", re.DOTALL), "contains a control character"),
    (re.compile(r".*['\u2018\u2019`\u00b4]", re.DOTALL), "contains an apostrophe"),
    (re.compile(r".*[\u00a0\u2007\u202f]", re.DOTALL), "contains no-break spaces"),
    (re.compile(r".*\s", re.DOTALL), "contains blanks"),
)
_CARD_FAULTS = (
    *_FAULTS,
    (re.compile(r".*[-\u2010-\u2015\u2212]", re.DOTALL), "contains dashes"),
    (
        re.compile(r"\d([.,]\d+)?[eE]\+?\d+\Z"),
        "in exponential notation: a spreadsheet has lost digits; export it as text",
    ),
    (re.compile(r"\d+[.,]\d+\Z"), "a number with decimals; export the column as text"),
)
# \udca0 is the no-break space of Latin-1, read as an invalid byte of UTF-8.
_NOISE = re.compile(
    "[\\s'\"`=\u2018\u2019\u201c\u201d\u00b4\u00ad\u200b-\u200f\u2060\ufeff\udca0\x00-\x1f\x7f-\x9f]+"
)
_DECIMALS = re.compile(r"[.,]0+\Z")
_NOT_A_DIGIT = re.compile(r"[^0-9]+")
_LETTER = re.compile(r"[^\W\d_]")
"""A letter. A text with letters is no card number, because 4.2E+15 has lost its last digits."""
_BETWEEN_VALUES = re.compile(r'[\s"{}\[\]:,;|]+')
Named = tuple[str | None, str | None]
"""A user named in a row: a nickname and ``None``, or ``None`` and a card number."""


def parse_user(fields: Fields, identifiers: Identifiers) -> User | str:
    """Return the user in a row, or the reason for its rejection. Reasons contain no values."""
    nickname, card_number, plan, url = fields
    if not (isinstance(nickname, str) and isinstance(card_number, str) and isinstance(plan, str)):
        values = zip(FIELDS, fields, strict=True)
        name, value = next(each for each in values if not isinstance(each[1], str))
        return f"{name}: missing" if value is None else f"{name}: not text; write it in quotes"
    user = User(plan, card_number, nickname.removeprefix("@"))
    if not (identifiers.accepts(user) and user.nickname.isprintable()):
        return _invalid_identifier(user, identifiers)
    if not is_plan(plan):
        return f"plan: {_fault(plan, _FAULTS[:2]) or f'not {PLAN_FORMAT}'}"
    if url is None or url == "":
        return user
    if is_profile_url(url):
        return User(plan, card_number, user.nickname, url)
    return f"profile_url: not {PROFILE_URL_FORMAT}"


def _invalid_identifier(user: User, identifiers: Identifiers) -> str:
    if not is_nickname(user.nickname, identifiers):
        fault = _fault(user.nickname, _FAULTS)
        return f"nickname: {fault or 'not in a valid format; see identifiers.nickname_pattern'}"
    fault = _fault(user.card_number, _CARD_FAULTS)
    if fault and fault.startswith("contains"):
        fault += "; only digits are allowed"
    return f"card_number: {fault or 'not in a valid format; see identifiers.card_length'}"


def _fault(text: str, faults: Iterable[tuple[re.Pattern[str], str]]) -> str | None:
    return next((reason for pattern, reason in faults if pattern.match(text)), None)


def is_nickname(text: str, identifiers: Identifiers) -> bool:
    """Return whether a text without ``@`` is a valid nickname."""
    return text.isprintable() and _is_valid(identifiers.parse_nickname, text)


def _is_valid(parse: Callable[[str], Query], text: str) -> bool:
    try:
        parse(text)
    except InvalidFormat:
        return False
    return True


def named_users(row: Fields | Unreadable, identifiers: Identifiers) -> Iterator[Named]:
    """Yield the valid nicknames and card numbers that a rejected row may contain.

    Blanks, apostrophes, dashes and decimals are removed, because spreadsheets add them to values.
    """
    if isinstance(row, Unreadable):
        nicknames = card_numbers = _BETWEEN_VALUES.split(row.text)
    else:
        nicknames, card_numbers = (
            [str(value)] if isinstance(value, str | int) else [] for value in row[:2]
        )
    for value in nicknames:
        texts = (value.removeprefix("@"), _plain(value).lstrip("@"))
        yield from [(text, None) for text in texts if is_nickname(text, identifiers)][:1]
    for plain in map(_plain, card_numbers):
        if not _LETTER.search(plain):
            cards = {_NOT_A_DIGIT.sub("", each) for each in (plain, _DECIMALS.sub("", plain))}
            yield from ((None, text) for text in cards if _is_valid(identifiers.parse_card, text))


def _plain(value: str) -> str:
    return _NOISE.sub("", unicodedata.normalize("NFKC", value))


def importable(users: Iterable[User], identifiers: Identifiers) -> Iterator[User]:
    """Yield the users unchanged. Raises `RefusedError` if an import would reject a user."""
    for number, user in enumerate(users, start=1):
        fields = (user.nickname, user.card_number, user.plan, user.profile_url)
        reason = parse_user(fields, identifiers)
        if isinstance(reason, str):
            raise RefusedError(
                f"user {number} in the order of nicknames: {reason}; an import would reject this "
                "user; correct the table, then export again"
            )
        yield user
