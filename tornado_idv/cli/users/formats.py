"""Users in files: CSV, JSON Lines and YAML, read row by row with line numbers, and written."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import IO, Any, Literal

import click

from tornado_idv import strict_json, yaml_loader
from tornado_idv.cli.common import RefusedError
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.commands import printable
from tornado_idv.model import User

Format = Literal["csv", "jsonl", "yaml"]
Fields = Sequence[object]
"""The values of a row in the order of `FIELDS`; ``None`` is missing."""
Row = tuple[int, Fields | str]
"""A line number, and the row that begins there, or why there is none."""

FIELDS = ("nickname", "card_number", "plan", "profile_url")
REQUIRED = FIELDS[:3]
DELIMITERS = {",": ",", ";": ";", "|": "|", "tab": "\t", "\t": "\t"}
"""What separates the fields of CSV, by its name on the command line."""
_NOT_CSV = "not CSV: a quote is not closed on its line, or followed by text, or a field is too long"
_WORKBOOKS = ("PK\x03\x04", "\udcd0\udccf\x11")
"""How an ``.xlsx`` begins, and an ``.xls`` that was opened as text."""
# A card number begins like this, also as spreadsheets write it: ="0012", 4E+15, 4000 1234.
_VALUE = re.compile(r"[\W_]*\d|@|https?://")
_EXTENSIONS: Mapping[str, Format] = {
    ".csv": "csv",
    ".xlsx": "csv",  # its reader says what to do with a workbook
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def format_of(name: str) -> Format | None:
    """Return the format that a file's extension stands for."""
    return _EXTENSIONS.get(PurePath(name).suffix.lower())


def read_rows(
    file: IO[str], form: Format, name: str, columns: Mapping[str, str], delimiter: str
) -> Iterator[Row]:
    """Yield the rows of a file that was opened with ``errors="surrogateescape"``.

    ``columns`` are the names that our fields have in the file. Raises `RefusedError` for a file
    that is not of this format at all.
    """
    if form == "csv":
        return _read_csv(file, name, columns, DELIMITERS[delimiter])
    return _read_jsonl(file, columns) if form == "jsonl" else _read_yaml(file, name, columns)


def write_users(file: IO[str], form: Format, users: Iterable[User]) -> None:
    """Write users as `read_rows` reads them."""
    if form == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(map(attrgetter(*FIELDS), users))
    elif form == "jsonl":
        file.writelines(f"{json.dumps(_fields(user), ensure_ascii=False)}\n" for user in users)
    else:
        heading = "users:\n"
        for user in users:
            fields = {**_fields(user), "nickname": f"@{user.nickname}"}
            members = ", ".join(f"{name}: {_yaml_text(text)}" for name, text in fields.items())
            file.write(f"{heading}  - {{{members}}}\n")
            heading = ""
        if heading:
            file.write("users: []\n")


def _fields(user: User) -> dict[str, str]:
    fields = {name: getattr(user, name) for name in REQUIRED}
    return fields if user.profile_url is None else {**fields, "profile_url": user.profile_url}


def _read_csv(
    file: IO[str], name: str, columns: Mapping[str, str], delimiter: str
) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**17))
    line = file.readline()
    header = _parse_line(line, delimiter)
    error = _file_error(line)
    if header is None or error:
        raise RefusedError(f"{name}:1: {error or f'the header is {_NOT_CSV}'}")
    if error := _header_error(line, header, columns):
        raise RefusedError(f"{name}:1: {printable(error)}")
    width = len(header)
    # Only the last field may have no column: it is read from a cell that is added to each row.
    header.append(columns[FIELDS[-1]])
    select = itemgetter(*(header.index(columns[field]) for field in FIELDS))
    first = 2
    while lines := list(islice(file, 200)):
        for number, cells in enumerate(_parse_lines(lines, delimiter), start=first):
            if cells is None:
                yield number, _NOT_CSV
            elif len(cells) == width:
                cells.append("")
                yield number, select(cells)
            elif cells:
                yield number, f"{len(cells)} fields instead of {width}"
        first += len(lines)


def _file_error(line: str) -> str | None:
    """Return why a file with this first line cannot be CSV."""
    if line.startswith(_WORKBOOKS):
        return "this is an Excel workbook; save it as CSV UTF-8"
    if "\0" in line:
        return "this is UTF-16; save it as CSV UTF-8, or convert it: iconv -f UTF-16 -t UTF-8"
    return None if line else "the file is empty"


def _header_error(line: str, header: Sequence[str], columns: Mapping[str, str]) -> str | None:
    """Return why a line is not a header with these columns; contains no value of a user."""
    missing = [columns[field] for field in REQUIRED if columns[field] not in header]
    for option, delimiter in DELIMITERS.items():
        if missing and len(_parse_line(line, delimiter) or ()) > len(header):
            return f"the fields are separated by {option!r}; add --delimiter {shlex.quote(option)}"
    folded = {name.strip().casefold(): name for name in header}
    pairs = [
        f"--map {shlex.quote(f'{folded[column.casefold()]}={field}')}"
        for field, column in columns.items()
        if column not in header and column.casefold() in folded
    ]
    if pairs:
        return f"case and blanks count in the names of columns; add {' '.join(pairs)}"
    if missing:
        problem = f"the header has no column {', '.join(missing)}"
        if any(not name.strip() or _VALUE.match(name.strip()) for name in header):
            return f"{problem}, and may be a user; write the names of the columns into line 1"
        found = ", ".join(header)[:500]
        return f"{problem}; it has {found}; name them with --map, like --map nick=nickname"
    twice = [one for one, other in pairwise(sorted(header)) if one == other != ""]
    return f"the header has two columns {twice[0]}" if twice else None


def _parse_lines(lines: Sequence[str], delimiter: str) -> Sequence[list[str] | None]:
    """Return the cells of each line, ``None`` for one that is no row by itself.

    A field never continues on the next line: one stray quote would remove the users that follow.
    All at once where each line is a row, which takes a fifth of the time (CPython 3.11).
    """
    try:
        rows = list(csv.reader(lines, strict=True, delimiter=delimiter))
    except csv.Error:
        rows = []
    return rows if len(rows) == len(lines) else [_parse_line(line, delimiter) for line in lines]


def _parse_line(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], strict=True, delimiter=delimiter))
    except csv.Error:
        return None


def _read_jsonl(file: IO[str], columns: Mapping[str, str]) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            value = strict_json.loads(line)
        except ValueError:
            yield number, "not a line of JSON"
            continue
        yield number, _by_field(value, columns) if isinstance(value, dict) else "not a JSON object"


def _read_yaml(file: IO[str], name: str, columns: Mapping[str, str]) -> Iterator[Row]:
    content = file.read().encode("utf-8", "surrogateescape")
    try:
        root = yaml_loader.read(content, name, quotes_span_lines=False)
    except ConfigError as error:
        raise RefusedError(str(error)) from None
    members: Mapping[Any, Any] = root if isinstance(root, yaml_loader.Mapping) else {}
    items = members.get("users")
    if not isinstance(items, yaml_loader.Items):
        raise RefusedError(f"{name}: has no list of users; write a mapping with the member users")
    count = members.get("count")
    if count is not None and count != str(len(items)):
        raise RefusedError(f"{name}: count is not the number of users; the file may be truncated")
    for item in items:
        is_user = isinstance(item, yaml_loader.Mapping)
        yield item.mark.line, _by_field(item, columns) if is_user else "not a mapping"


def _by_field(members: Mapping[str, object], columns: Mapping[str, str]) -> Fields:
    values = [members.get(columns[field]) for field in FIELDS]
    # Values of YAML are a subclass of str, which databases refuse.
    return [str(value) if isinstance(value, str) else value for value in values]


def _yaml_text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    import yaml  # noqa: PLC0415 - for unusual text only

    dumped: Any = yaml.dump(text, default_style='"', width=sys.maxsize)
    return str(dumped).strip()


def format_option(help_text: str) -> Callable[[Any], Any]:
    formats = click.Choice(["csv", "jsonl", "yaml"])
    return click.option("--format", "form", type=formats, help=help_text)
