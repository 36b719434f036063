"""The SQL of a lookup: one statement for each kind of query, and its parameters.

A program may store a card number as a number or as bytes. In SQLite, neither equals the queried
text, and an existing user would be "not found". So a lookup also searches for the number and the
bytes. For a row with a number or bytes, it raises `Broken`.

Text, number and bytes have separate SELECTs. With ``IN`` or ``OR``, SQLite's planner would ignore
the index of a table that was small at its last ANALYZE.

Several lookups of one kind share one statement. This saves most of the time for switches between
the event loop and SQLite's thread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tornado_idv import ByNickname, Query

Value = str | bytes | None

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
"""Pattern of a text that a numeric column of SQLite converts to a number."""
_OPERANDS = {
    # A cast converts like an INSERT. Without the plus, its affinity would apply to the column.
    "text": "?{0}",
    "blob": "?{1}",
    "native": "+CAST(?{0} AS BLOB)",
    "integer": "+CAST(?{2} AS NUMERIC)",
    "real": "+CAST(?{2} AS REAL)",
}
"""SQL of the value in each storage form. ``{0}`` is the number of the parameter with the text,
``{1}`` with the UTF-8 bytes, and ``{2}`` with the text if it is numeric."""
_AT_ONCE = (1, 2, 4, 8, 16, 32)
"""The sizes of batches. They are few, since sqlite3 caches a prepared statement per size."""


@dataclass(frozen=True, slots=True, eq=False)
class LookupStatement:
    """The statement for one kind of query, with a SELECT for each storage form of the value.

    ``batches`` maps each size of a batch to its statement. The parameters of this statement are the
    values of all queries in order. Each row begins with the index of its query.
    """

    sql: str
    parameters: int
    folds: bool
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
    ) -> "LookupStatement":
        """Return the statement that finds a value in ``column``, a quoted SQL expression.

        ``select`` is a SELECT of users. It returns the column under the name ``name``. With
        ``is_text``, the column stores numbers as text. With ``folds``, ASCII case is ignored.
        """
        forms = ["text", "blob", *(() if is_text else ("integer", "real"))]
        forms += ["native"] * (is_utf16 and not folds)
        parameters = 2 if is_text else 3
        # A column of a view has the affinity of a column of one of its tables. SQLite applies this
        # affinity to the value, and may find a row of another table by mistake. So the row is
        # compared again, outside of a LIMIT, because SQLite moves no condition across a LIMIT.
        limit = " LIMIT -1" if is_view else ""

        def arm(form: str, place: int) -> str:
            numbers = [parameters * place + number for number in (1, 2, 3)]
            operand = _OPERANDS[form].format(*numbers)
            indexed = f"{column} = {operand}{' COLLATE NOCASE' if folds else ''}"
            exact = f"typeof({name}) = '{form.replace('native', 'blob')}'"
            if form == "text":
                exact += f" AND +{name} = {operand} COLLATE {'NOCASE' if folds else 'BINARY'}"
            elif form == "blob" and folds:
                # Collations do not apply to bytes. In an index, bytes come after all text. The
                # pattern finds UTF-8. The cast reads the encoding of the database.
                indexed = f"{column} COLLATE NOCASE >= x''"
                folded = f"CAST({name} AS TEXT) = ?{numbers[0]} COLLATE NOCASE"
                exact += f" AND (hex({name}) GLOB {operand} OR {folded})"
            return f"SELECT * FROM ({select} WHERE {indexed}{limit}) AS f WHERE {exact}"  # noqa: S608 - quoted

        def one(place: int) -> str:
            return f"{' UNION ALL '.join(arm(form, place) for form in forms)} LIMIT 2"

        numbered = [f"SELECT {place}, * FROM ({one(place)})" for place in range(_AT_ONCE[-1])]  # noqa: S608 - quoted
        batches = {size: " UNION ALL ".join(numbered[:size]) for size in _AT_ONCE}
        return cls(one(0), parameters, folds, batches)

    def values(self, query: Query) -> tuple[Value, ...]:
        """Return the parameters of the statement for one query."""
        text = query.nickname if isinstance(query, ByNickname) else query.card_number
        data: Value = text.encode()
        if self.folds:  # a pattern for the hexadecimal digits; a letter's case is the bit 0x20
            data = "".join(f"[{x >> 4:X}{(x & ~0x20) >> 4:X}]{x & 15:X}" for x in text.encode())
        return (text, data, text if _NUMBER.fullmatch(text) else None)[: self.parameters]
