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
from dataclasses import dataclass

from tornado_idv import ByNickname, Query

Value = str | bytes | None

_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
"""Text that SQLite stores as a number in a column of numbers, but for zeros in front."""
_OPERANDS = {
    # A cast converts as SQLite does when it stores; without the plus the column would be converted.
    "text": "?{0}",
    "blob": "?{1}",
    "native": "+CAST(?{0} AS BLOB)",
    "integer": "+CAST(?{2} AS NUMERIC)",
    "real": "+CAST(?{2} AS REAL)",
}
"""The forms of a value, from the parameters text, bytes in UTF-8, and text that is a number."""
_AT_ONCE = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """One kind of query, asked in each form that the column can hold.

    ``batches`` are statements for several queries at once, by their number: the values are
    those of one after the other, and each row begins with the place of its query, from 0.
    """

    sql: str
    parameters: int
    batches: Mapping[int, str]

    @classmethod
    def by(
        cls,
        column: str,
        select: str,
        name: str,
        *,
        is_text: bool,
        is_utf16: bool,
        is_view: bool,
        folds: bool,
    ) -> Lookup:
        """Return the lookup by a quoted SQL expression, which ``select`` selects as ``name``.

        ``is_text`` says that SQLite turns the column's numbers into text as they are stored.
        With ``folds`` the case of ASCII letters does not count.
        """
        forms = [
            *("text", "blob"),
            *(() if is_text else ("integer", "real")),
            *(("native",) if is_utf16 and not folds else ()),
        ]
        parameters = 2 if is_text else 3
        # A column of a view has the affinity that one of its tables declares, and SQLite would take
        # the value, converted to it, for what other tables hold. So what is found is compared
        # with the value again, behind a limit that SQLite does not move conditions over.
        limit = " LIMIT -1" if is_view else ""

        def arm(form: str, place: int) -> str:
            numbers = [parameters * place + number for number in (1, 2, 3)]
            operand = _OPERANDS[form].format(*numbers)
            indexed = f"{column} = {operand}{' COLLATE NOCASE' if folds else ''}"
            exact = f"typeof({name}) = '{form.replace('native', 'blob')}'"
            if form == "text":
                exact += f" AND +{name} = {operand} COLLATE {'NOCASE' if folds else 'BINARY'}"
            elif form == "blob" and folds:
                # Collations leave bytes alone; an index has them behind all text.
                indexed = f"{column} COLLATE NOCASE >= x''"
                folded = f"CAST({name} AS TEXT) = ?{numbers[0]} COLLATE NOCASE"
                exact += f" AND ({name} = {operand} OR {folded})"
            return f"SELECT * FROM ({select} WHERE {indexed}{limit}) AS f WHERE {exact}"  # noqa: S608 - quoted

        def one(place: int) -> str:
            return f"{' UNION ALL '.join(arm(form, place) for form in forms)} LIMIT 2"

        numbered = [f"SELECT {place}, * FROM ({one(place)})" for place in range(_AT_ONCE[-1])]  # noqa: S608 - quoted
        batches = {size: " UNION ALL ".join(numbered[:size]) for size in _AT_ONCE}
        return cls(one(0), parameters, batches)

    def values(self, query: Query) -> tuple[Value, ...]:
        """Return the parameters of one query."""
        text = query.nickname if isinstance(query, ByNickname) else query.card_number
        number = text if _NUMBER.fullmatch(text) else None
        return (text, text.encode(), number)[: self.parameters]
