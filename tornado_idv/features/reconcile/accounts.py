"""The reader of an application's accounts from CSV, JSON Lines, or lines of identifiers."""

import csv
from collections.abc import Iterator
from itertools import chain
from typing import IO, Literal, NamedTuple

from tornado_idv import strict_json
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.features.reconcile.state import UndeterminedError
from tornado_idv.interfaces.command_tools import printable

By = Literal["input", "nickname", "card"]
_CUT = (
    "the file ends within this row, so its identifier may be truncated; if the row is complete, add"
    " a line break"
)
_ENDS = ("\n", "\r", '"', "}")
"""Last characters of a complete row. A row without one of them at its end may be truncated."""


class Account(NamedTuple):
    """An account in the list. ``text`` is its row, including the line break."""

    line: int
    identifier: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {printable(self.identifier)}"


class AccountReader:
    """An iterable that reads accounts row by row. ``name`` is the file name for messages.

    Without ``column``, each line is an identifier. Otherwise, the file is JSON Lines if it begins
    with ``{``, or else CSV. ``column`` is the member or column with the identifier, and ``header``
    the header line of CSV. Raises `ConfigError`, and `UndeterminedError` if a read fails.
    """

    def __init__(
        self, source: IO[str], name: str, column: str | None, by: By, delimiter: str = ","
    ) -> None:
        self.header = ""
        self._source, self._name = source, name
        self._column, self._by, self._delimiter = column, by, delimiter
        self._taken: list[str] = []

    def __iter__(self) -> Iterator[Account]:
        first = next(unread := self._lines(), "")
        lines = chain([first] if first else [], unread)
        rows: Iterator[tuple[int, str]]
        if self._column is None:
            rows = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
        elif first.lstrip().startswith("{"):
            rows = self._read_json(lines, self._column)
        else:
            rows = self._read_csv(lines, self._column)
        for number, value in rows:
            if not self._taken[-1].endswith(_ENDS):
                raise self._problem(number, _CUT)
            identifier, text = value.strip(), self._take()
            if self._by == "nickname" and identifier and not identifier.startswith("@"):
                identifier = f"@{identifier}"
            yield Account(number, identifier, text)

    def _lines(self) -> Iterator[str]:
        try:
            for number, line in enumerate(self._source, start=1):
                if not strict_json.is_unicode(line):
                    raise self._problem(number, "not UTF-8")
                self._taken.append(line)
                yield line
        except OSError as error:
            raise UndeterminedError(f"{self._name}: cannot be read: {error.strerror}") from None

    def _take(self) -> str:
        """Return the text of the lines read since the last call, with a line break at the end."""
        text = "".join(self._taken)
        self._taken.clear()
        return text if text.endswith(("\n", "\r")) else f"{text}\n"

    def _read_csv(self, lines: Iterator[str], column: str) -> Iterator[tuple[int, str]]:
        rows = csv.reader(lines, delimiter=self._delimiter, strict=True)
        line = 1
        try:
            names = next(rows, [])
            if names.count(column) != 1:
                known = printable(", ".join(names)[:500])
                raise self._problem(1, f"the header must have {column} once; it has {known}")
            self.header = self._take()
            line = rows.line_num + 1
            for row in rows:
                if row and len(row) != len(names):
                    raise self._problem(line, f"{len(row)} fields, and the header has {len(names)}")
                if row:
                    yield line, row[names.index(column)]
                else:
                    self._taken.clear()
                line = rows.line_num + 1
        except csv.Error as error:
            raise self._problem(line, f"not CSV: {error}") from None

    def _read_json(self, lines: Iterator[str], column: str) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, start=1):
            try:
                record = strict_json.loads(line)
            except ValueError:
                raise self._problem(number, "not a JSON document") from None
            value = record.get(column) if isinstance(record, dict) else None
            if not isinstance(value, str):
                raise self._problem(number, f"must be an object with a string {column}")
            yield number, value

    def _problem(self, line: int, message: str) -> ConfigError:
        return ConfigError(Problem(self._name, line, 1, "", message))
