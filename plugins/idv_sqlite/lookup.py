"""The SQL of a lookup: one statement for each kind of query, and its parameters.

SQLite stores values as they are inserted. A column may hold a card number as a number or as
bytes, neither of which equals the queried text, and the result would be "not known here" for a
user who exists. So a lookup queries these forms, too, and a row found by one is `Broken`.

Each form is a SELECT of its own: with ``IN`` or ``OR`` SQLite's planner does not use the index
of a table that was small when it was analysed.

Several lookups of one kind share one statement, which saves most of the time of switching
between the event loop and SQLite's thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tornado_idv import ByNickname, Query

Value = str | bytes | int | float | None

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?")
_INTEGERS = range(-(2**63), 2**63)
_LONGEST_INTEGER = len(str(-(2**63)))

_ONLY_BYTES = ("text", "blob")
_ANYTHING = ("text", "blob", "integer", "real")
_AT_ONCE = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """One kind of query, asked in each of the ``forms`` that the column can hold.

    ``batches`` are statements for several queries at once, by their number: the values are
    those of one after the other, and each row begins with the place of its query, from 0.
    """

    sql: str
    forms: tuple[str, ...]
    batches: Mapping[int, str]
    folds: bool = False

    @classmethod
    def by(
        cls, column: str, select: str, *, is_text: bool, is_view: bool, folds: bool = False
    ) -> Lookup:
        """Return the lookup by a quoted SQL expression, of the rows that ``select`` selects.

        ``is_text`` says that SQLite turns the column's numbers into text as they are stored.
        With ``folds`` the case of ASCII letters does not count.
        """
        equals = _equals_folded if folds else _equals
        forms = _ONLY_BYTES if is_text else _ANYTHING
        # After "= ?" SQLite may take the value for the column's, with the type that the first table
        # of a view declares, and compare `typeof` with that. With IS a small table is scanned.
        operator = "IS" if is_view else "="
        arms = [f"{select} WHERE {equals(column, form, operator)}" for form in forms]
        one = f"{' UNION ALL '.join(arms)} LIMIT 2"
        numbered = [f"SELECT {place}, * FROM ({one})" for place in range(_AT_ONCE[-1])]  # noqa: S608 - quoted
        return cls(
            one, forms, {size: " UNION ALL ".join(numbered[:size]) for size in _AT_ONCE}, folds
        )

    def unbatched(self) -> Lookup:
        """Return the same without batches, for a table in which each lookup takes long."""
        return replace(self, batches={1: self.batches[1]})

    def values(self, query: Query) -> tuple[Value, ...]:
        """Return the queried value, once for each ``?`` of the statement."""
        text = query.nickname if isinstance(query, ByNickname) else query.card_number
        values = (text, text) if self.folds else (text, text, text.encode())
        return values if self.forms == _ONLY_BYTES else (*values, *_numbers(text))


def _equals(column: str, form: str, operator: str) -> str:
    """Equal to the byte; the first half can use an index of the column's own collation."""
    if form == "text":
        return f"{column} = ? AND {column} = ? COLLATE BINARY AND typeof({column}) = 'text'"
    return f"{column} {operator} ? AND typeof({column}) = '{form}'"


def _equals_folded(column: str, form: str, operator: str) -> str:
    """Equal but for the case of ASCII letters; an index with the collation NOCASE serves it."""
    if form == "blob":  # Collations leave bytes alone; an index has them behind all text.
        return (
            f"{column} COLLATE NOCASE >= x'' AND typeof({column}) = 'blob' "
            f"AND CAST({column} AS TEXT) = ? COLLATE NOCASE"
        )
    return f"{column} {operator} ? COLLATE NOCASE AND typeof({column}) = '{form}'"


def _numbers(text: str) -> tuple[int | None, float | None]:
    """Return the integer and the real number with this text; none has leading zeros."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None, None
    # Python refuses to convert more than 4,300 digits, with a ValueError; SQLite stores 19.
    is_integer = match[1] is None and len(text) <= _LONGEST_INTEGER and int(text) in _INTEGERS
    return int(text) if is_integer else None, float(text)
