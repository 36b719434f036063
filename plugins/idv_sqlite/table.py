"""The table or view with the users: validation, and the SQL of its lookups.

Columns are always qualified with the table (``u."name"``). If there is no such column, SQLite reads
an unqualified ``"name"`` as a string, and every user would be "not found".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import aiosqlite

from idv_sqlite.options import SqliteOptions
from tornado_idv import Broken, ByCard, ByNickname, Query, Unavailable, User

FIELDS = ("plan", "card_number", "nickname", "profile_url")
"""The fields of a `User`, in order."""
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

    A program may store a card number as a number or as bytes. In SQLite, neither equals the queried
    text, and an existing user would be "not found". So a lookup also searches for the number and
    the bytes. For a row with a number or bytes, it raises `Broken`. With ``IN`` or ``OR`` instead
    of separate SELECTs, SQLite's planner would ignore the index of a table that was small at its
    last ANALYZE.

    ``batches`` maps each size of a batch to its statement. One statement for several lookups saves
    most of the time for switches between the event loop and SQLite's thread. Its parameters are the
    values of all queries in order. Each row begins with the index of its query.
    """

    sql: str
    parameters: int
    folds: bool
    batches: Mapping[int, str]

    @classmethod
    def by(
        cls, column: str, select: str, name: str, forms: list[str], *, is_view: bool, folds: bool
    ) -> "LookupStatement":
        """Return the statement that finds a value in ``column``, a quoted SQL expression.

        ``select`` is a SELECT of users. It returns the column under the name ``name``. ``forms``
        are the storage forms to search for. With ``folds``, ASCII case is ignored.
        """
        parameters = 3 if "integer" in forms else 2
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


@dataclass(frozen=True, slots=True)
class Table:
    """A validated table. ``warnings`` are messages for the log, about speed and uniqueness.

    ``columns`` maps fields to the quoted names of columns. ``profile_url`` may be missing.
    """

    lookups: dict[type[Query], LookupStatement]
    warnings: Sequence[str]
    is_view: bool
    columns: Mapping[str, str]


async def inspect(connection: aiosqlite.Connection, options: SqliteOptions) -> Table:
    """Validate the table of users, and return its description.

    Raises `Unavailable` for a missing table or column, `Broken` for a column that turns text into
    numbers or for stored nicknames with a leading ``@``, and `sqlite3.Error`.
    """
    table = options.table
    rows = await connection.execute_fetchall(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    )
    kinds = {_folded(name): kind for name, kind in rows}
    if _folded(table) not in kinds:
        raise Unavailable(f"there is no table {_listed(table, [name for name, _ in rows])}")
    is_view = kinds[_folded(table)] == "view"
    types = await _column_types(connection, options)
    names = options.column_names
    columns = {field: quoted(name) for field, name in names.items() if _folded(name) in types}
    values = {field: f"u.{columns[field]}" if field in columns else "NULL" for field in FIELDS}
    selected = ", ".join(f"{value} AS {field}" for field, value in values.items())
    select = f"SELECT {selected} FROM {quoted(table)} AS u"  # noqa: S608 - quoted
    ((encoding,),) = await connection.execute_fetchall("PRAGMA encoding")
    lookups: dict[type[Query], LookupStatement] = {}
    slow = []
    for query, field, folds in (
        (ByNickname(""), "nickname", options.folds_nicknames),
        (ByCard(""), "card_number", False),
    ):
        # A text column stores numbers as text. Rows of a view may have other types.
        is_text = not is_view and _affinity(types[_folded(names[field])]) == "text"
        forms = ["text", "blob"] + ["integer", "real"] * (not is_text)
        forms += ["native"] * (encoding != "UTF-8" and not folds)
        lookup = LookupStatement.by(
            values[field], select, field, forms, is_view=is_view, folds=folds
        )
        is_slow = await _scans(connection, lookup, query, is_view=is_view)
        # A slow lookup would delay the others of its batch.
        alone = replace(lookup, batches={1: lookup.batches[1]})
        lookups[type(query)] = alone if is_view or is_slow else lookup
        slow += [field.replace("_", " ")] * is_slow
    reads_all = f"a lookup by {' or '.join(slow)} reads the whole table; an index is missing"
    warnings = [reads_all] if slow else []
    if not is_view:
        warnings += await _unique_index_warnings(connection, options)
        await _reject_at_signs(connection, options)
    return Table(lookups, warnings, is_view, columns)


def to_user(row: Sequence[Any]) -> User:
    """Return the user in a row. Raises `Broken` for an invalid row."""
    for name, value in zip(("plan", "card number", "nickname", "profile URL"), row, strict=True):
        if not (isinstance(value, str) and value) and (name, value) != ("profile URL", None):
            raise Broken(f"the {name} of a row is not text, or empty")
    if row[2].startswith("@"):
        raise Broken("the nickname of a row is stored with a leading @")
    return User(*row)


def quoted(name: str) -> str:
    """Return a name quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


async def _column_types(connection: aiosqlite.Connection, options: SqliteOptions) -> dict[str, str]:
    """Return the declared types by lower-case column name. Raises `Unavailable` or `Broken`."""
    rows = await connection.execute_fetchall(
        "SELECT name, type FROM pragma_table_xinfo(?)", [options.table]
    )
    types = {_folded(name): str(declared).upper() for name, declared in rows}
    for column in options.columns.model_dump(exclude_none=True).values():
        if _folded(column) not in types:
            names = _listed(column, [name for name, _ in rows])
            raise Unavailable(f"the table {quoted(options.table)} has no column {names}")
    # SQLite before 3.37 has no STRICT tables, and returns no rows here.
    tables = await connection.execute_fetchall(f"PRAGMA main.table_list({quoted(options.table)})")
    if any(strict for *_, strict in tables):
        # In a STRICT table, `ANY` keeps each value; elsewhere it turns digits into numbers.
        types = {name: "" if declared == "ANY" else declared for name, declared in types.items()}
    for column in (options.columns.nickname, options.columns.card_number):
        if _affinity(declared := types[_folded(column)]) == "numeric":
            raise Broken(
                f"the column {quoted(column)} is declared {declared} and turns digits into "
                "numbers and drops leading zeros; declare it TEXT and load the users again"
            )
    return types


def _affinity(declared: str) -> Literal["text", "numeric", "none"]:
    """Return the affinity of a declared type, by the rules of SQLite in their order.

    Text affinity turns numbers into text. Numeric affinity turns numeric text into numbers.
    """
    if "INT" in declared:
        return "numeric"
    if re.search("CHAR|CLOB|TEXT", declared):
        return "text"
    return "numeric" if declared and "BLOB" not in declared else "none"


async def _scans(
    connection: aiosqlite.Connection, lookup: LookupStatement, query: Query, *, is_view: bool
) -> bool:
    """Return whether a lookup reads the whole table."""
    # SQLite reads the rows of the view one by one: only scans of its tables count.
    harmless = {"SCAN CONSTANT ROW", *(("SCAN u", "SCAN f") if is_view else ())}
    sql = f"EXPLAIN QUERY PLAN {lookup.sql}"
    plan = [row[-1] for row in await connection.execute_fetchall(sql, lookup.values(query))]
    return any(step.startswith("SCAN") and step not in harmless for step in plan)


async def _unique_index_warnings(
    connection: aiosqlite.Connection, options: SqliteOptions
) -> list[str]:
    rows = await connection.execute_fetchall(
        "SELECT max(c.name), max(c.coll) FROM pragma_index_list(?) AS i, "
        'pragma_index_xinfo(i.name) AS c WHERE i."unique" AND NOT i.partial AND c.key '
        "GROUP BY i.name HAVING count(*) = 1 AND max(c.name) IS NOT NULL",
        [options.table],
    )
    unique = {(_folded(name), collation.upper() == "NOCASE") for name, collation in rows}
    names, warnings = options.columns, []
    for name, folds in ((names.nickname, options.folds_nicknames), (names.card_number, False)):
        if (_folded(name), True) in unique or (not folds and (_folded(name), False) in unique):
            continue
        index = quoted(f"{options.table}_{name}{'_nocase' if folds else ''}")
        indexed = f"{quoted(name)}{' COLLATE NOCASE' if folds else ''}"
        warnings.append(
            f"a lookup by {quoted(name)} may find two rows, because a unique index is missing; "
            f"create one: CREATE UNIQUE INDEX {index} ON {quoted(options.table)} ({indexed})"
        )
    return warnings


async def _reject_at_signs(connection: aiosqlite.Connection, options: SqliteOptions) -> None:
    table, column = quoted(options.table), quoted(options.columns.nickname)
    # The range can use an index. With NOCASE, it has more characters than @, so substr follows.
    rows = await connection.execute_fetchall(
        f"SELECT 1 FROM {table} AS u WHERE u.{column} >= '@' AND u.{column} < 'A' "  # noqa: S608 - quoted
        f"AND substr(u.{column}, 1, 1) = '@' LIMIT 1"
    )
    if rows:
        repair = f"UPDATE {table} SET {column} = substr({column}, 2) WHERE {column} LIKE '@%'"  # noqa: S608 - quoted
        raise Broken(f"some nicknames are stored with a leading @; this repairs them: {repair}")


def _folded(name: str) -> str:
    """Return a name with its ASCII letters in lower case, as SQLite compares names."""
    return re.sub("[A-Z]+", lambda match: match[0].lower(), name)


def _listed(wanted: str, names: Sequence[str]) -> str:
    """Return a phrase with a missing name, the most similar name and all existing names."""
    near = get_close_matches(wanted, names, n=1)
    hint = f" (did you mean {quoted(near[0])}?)" if near else ""
    return f"{quoted(wanted)}{hint}; there are: {', '.join(map(quoted, names)) or 'none'}"
