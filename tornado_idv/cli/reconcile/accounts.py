"""Accounts of an application, read from CSV, JSON Lines, or lines that are identifiers."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Literal, NamedTuple

from tornado_idv import strict_json
from tornado_idv.errors import ConfigError, Problem

Format = Literal["csv", "jsonl", "lines"]
By = Literal["input", "nickname", "card"]
_EXTENSIONS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class Account(NamedTuple):
    """An account: its identifier, and the text of its row with the line break."""

    line: int
    identifier: str
    text: str


def format_of(name: str) -> Format:
    """Return the format that a file's extension stands for; by default ``lines``."""
    return _EXTENSIONS.get(PurePath(name).suffix.lower(), "lines")


@dataclass(frozen=True)
class Layout:
    """The place of the identifiers: a column of CSV, a member of JSON Lines, or a line."""

    form: Format
    column: str
    by: By
    delimiter: str = ","


class AccountReader:
    """Reads accounts row by row from a file called ``name``; ``header`` is the text of that of CSV.

    Iterating raises `ConfigError` with the line of a row that is not of the format.
    """

    def __init__(self, source: IO[str], name: str, layout: Layout) -> None:
        self.header = ""
        self._lines = _Lines(source)
        self._name = name
        self._layout = layout

    def __iter__(self) -> Iterator[Account]:
        read = {"csv": self._read_csv, "jsonl": self._read_json, "lines": self._read_lines}
        for line, value in read[self._layout.form]():
            text = self._lines.take()
            if not strict_json.is_unicode(text):
                raise self._problem(line, "not UTF-8")
            yield Account(line, self._identifier(value.strip()), text)

    def _identifier(self, value: str) -> str:
        is_bare = self._layout.by == "nickname" and value and not value.startswith("@")
        return f"@{value}" if is_bare else value

    def _read_csv(self) -> Iterator[tuple[int, str]]:
        rows = csv.reader(self._lines, delimiter=self._layout.delimiter, strict=True)
        line = 1
        try:
            names = next(rows, [])
            column = self._layout.column
            if names.count(column) != 1:
                known = ", ".join(names)
                raise self._problem(1, f"the header must have {column} once; it has {known}")
            place = names.index(column)
            self.header = self._lines.take()
            while True:
                line = self._lines.number + 1
                row = next(rows, None)
                if row is None:
                    return
                if not row:
                    self._lines.take()
                elif len(row) != len(names):
                    what = f"{len(row)} fields, and the header has {len(names)}"
                    raise self._problem(line, what)
                else:
                    yield line, row[place]
        except csv.Error as error:
            raise self._problem(line, f"not CSV: {error}") from None

    def _read_json(self) -> Iterator[tuple[int, str]]:
        for text in self._lines:
            line = self._lines.number
            try:
                record = strict_json.loads(text)
            except ValueError:
                raise self._problem(line, "not a JSON document") from None
            value = record.get(self._layout.column) if isinstance(record, dict) else None
            if not isinstance(value, str):
                raise self._problem(line, f"must be an object with a string {self._layout.column}")
            yield line, value

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        for text in self._lines:
            if text.strip():
                yield self._lines.number, text
            else:
                self._lines.take()

    def _problem(self, line: int, message: str) -> ConfigError:
        return ConfigError(Problem(self._name, line, 1, "", message))


class _Lines:
    """Lines of a file, of which those since the last `take` are kept."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._source)
        self.number += 1
        self._taken.append(line)
        return line

    def take(self) -> str:
        """Return the lines that were read since the last call, with a line break."""
        text = "".join(self._taken)
        self._taken.clear()
        return text if text.endswith(("\n", "\r")) else f"{text}\n"
