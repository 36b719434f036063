"""Users in files: CSV, JSON Lines and YAML, read row by row with line numbers, and written.

A file that ends within a row is refused: it may have lost many more rows than this one.
"""

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
from typing import IO, Any, Literal, NamedTuple

import click

from tornado_idv import strict_json, yaml_loader
from tornado_idv.cli.common import RefusedError, counted
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.commands import printable
from tornado_idv.model import User

Format = Literal["csv", "jsonl", "yaml"]
Fields = tuple[object, ...]
"""The values of a row in the order of `FIELDS`; ``None`` is missing."""


class Unreadable(NamedTuple):
    """A row that is not of the format, and the texts in it that may be its values."""

    reason: str
    cells: Sequence[str] = ()


class Unfinished(NamedTuple):
    """The last row of a file without a line break at its end, which may have cut this field."""

    fields: Fields
    field: str


Row = tuple[int, Fields | Unreadable | Unfinished]
"""A line number, and the row that begins there."""

FIELDS = ("nickname", "card_number", "plan", "profile_url")
REQUIRED = FIELDS[:3]
DELIMITERS = {",": ",", ";": ";", "|": "|", "tab": "\t", "\t": "\t"}
"""What separates the fields of CSV, by its name on the command line."""
_NOT_CSV = "not CSV: a quote is not closed on its line, or followed by text, or a field is too long"
_WORKBOOKS = ("PK\x03\x04", "\udcd0\udccf\x11")
"""How an ``.xlsx`` begins, and an ``.xls`` that was opened as text."""
_SEPARATOR = re.compile(r"sep=(.)\s*")
"""The first line by which a spreadsheet learns the delimiter."""
_TRAILER = re.compile(
    r"(?:total|sum|count|number|of|rows?|records?|users|lines|selected|affected|end|eof|[\W\d_])+",
    re.IGNORECASE,
)
"""Words of a last line that is no row, such as ``Total;5000``."""
_CUT = (
    "the file ends within this row, so that more rows may be missing; nothing was changed; if this "
    "line is no row, delete it"
)
_LETTER = re.compile(r"[^\W\d_]")
_JSON_TEXT = re.compile(r'[^\s"{}\[\]:,]+')
# A card number begins like this, also as spreadsheets write it: ="0012", 4E+15, 4000 1234.
_VALUE = re.compile(r"[\W_]*\d|@|https?://")
_EXTENSIONS: Mapping[str, Format] = {
    ".csv": "csv",
    ".xlsx": "csv",  # its reader says what to do with a workbook
    ".json": "jsonl",  # its reader says what to do with an array
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
    that is not of this format at all, or ends within a row.
    """
    if form == "csv":
        return _read_csv(file, name, columns, DELIMITERS[delimiter])
    return (_read_jsonl if form == "jsonl" else _read_yaml)(file, name, columns)


def write_users(file: IO[str], form: Format, users: Iterable[User]) -> None:
    """Write users as `read_rows` reads them."""
    if form == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(map(attrgetter(*FIELDS), users))
    elif form == "jsonl":
        rows = ({name: getattr(user, name) for name in FIELDS} for user in users)
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    else:
        heading = "users:\n"
        for user in users:
            values = (f"@{user.nickname}", user.card_number, user.plan, user.profile_url)
            fields = zip(FIELDS, values, strict=True)
            members = ", ".join(f"{name}: {_yaml_text(text)}" for name, text in fields if text)
            file.write(f"{heading}  - {{{members}}}\n")
            heading = ""
        if heading:
            file.write("users: []\n")


def _read_csv(
    file: IO[str], name: str, columns: Mapping[str, str], delimiter: str
) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**17))
    first_line = file.readline()
    header = _header(first_line, name, columns, delimiter)
    width = len(header)
    # Only the last field may have no column: it is read from a cell that is added to each row.
    missing: list[Any] = [] if columns[FIELDS[-1]] in header else [None]
    names = [*header, columns[FIELDS[-1]]]
    select = itemgetter(*(names.index(columns[field]) for field in FIELDS))
    last: Row | None = None
    first, count, text, tail = 2, 0, "", ""
    while lines := list(islice(file, 200)):
        for number, cells in enumerate(_parse_lines(lines, delimiter), start=first):
            if not (cells is None or (cells and cells[0].strip()) or any(map(str.strip, cells))):
                continue
            if last is not None:
                count += 1
                yield last
            text = lines[number - first]
            if cells is None:
                last = number, Unreadable(_NOT_CSV, text.replace('"', "").split(delimiter))
            elif len(cells) == width:
                last = number, select(cells + missing)
            else:
                last = number, Unreadable(f"{len(cells)} fields instead of {width}", cells)
        first, tail = first + len(lines), lines[-1]
    if last is None or _is_trailer(f"{name}:{last[0]}", text, count, delimiter):
        return
    sizes = [len(_parse_line(each, delimiter) or ()) for each in (text, tail)]
    is_open = not tail.endswith(("\n", "\r"))
    if sizes[0] < width or (is_open and sizes[1] != width) or _lacks_line_feed(first_line, tail):
        raise RefusedError(f"{name}:{last[0]}: {_CUT}")
    # Of a row whose last column is not ours, no field can be cut.
    fields = [field for field in FIELDS if columns[field] == header[-1]]
    if is_open and text is tail and fields and not text.endswith('"'):
        last = last[0], Unfinished(last[1], fields[0])
    yield last


def _header(line: str, name: str, columns: Mapping[str, str], delimiter: str) -> Sequence[str]:
    """Return the names of the columns; raises `RefusedError`."""
    header = _parse_line(line, delimiter)
    error = _file_error(line)
    if header is None or error:
        raise RefusedError(f"{name}:1: {error or f'the header is {_NOT_CSV}'}")
    if error := _header_error(line, header, columns):
        raise RefusedError(f"{name}:1: {printable(error)}")
    return header


def _is_trailer(place: str, line: str, count: int, delimiter: str) -> bool:
    """Return whether a last line is no row; raises `RefusedError` if it has another count.

    Without a line break it must be a count: ``end`` and ``total,4`` may begin a row that was cut.
    """
    numbers = re.findall(r"\d+", re.sub(r"(?<=\d)[.,'](?=\d{3})", "", line))
    if len(numbers) > 1 or not (_LETTER.search(line) and _TRAILER.fullmatch(line)):
        return False
    is_open = not line.endswith(("\n", "\r"))
    if is_open and (delimiter in line or not re.search(r"(?<!\w)\d", line)):
        return False
    if numbers and int(numbers[0]) != count:
        text = f"the last line has the number {numbers[0]}, and {counted(count, 'row')} before it"
        raise RefusedError(f"{place}: {text}; rows are missing; nothing was changed")
    return True


def _lacks_line_feed(first: str, last: str) -> bool:
    """Return whether a file was cut within the line break of its last line."""
    return first.endswith("\r\n") and last.endswith("\r")


def _file_error(line: str) -> str | None:
    """Return why a file with this first line cannot be CSV."""
    if line.startswith(_WORKBOOKS):
        return "this is an Excel workbook; save it as CSV UTF-8"
    if "\0" in line:
        encoding = "utf-16-be" if line.startswith("\0") else "utf-16"
        return f"this is UTF-16; add --encoding {encoding}, or save it as CSV UTF-8"
    if separator := _SEPARATOR.fullmatch(line):
        option = next((each for each, text in DELIMITERS.items() if text == separator[1]), "tab")
        advice = f"delete it, and add --delimiter {shlex.quote(option)}"
        return f"this line names the delimiter for a spreadsheet; {advice}"
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


def _read_jsonl(file: IO[str], name: str, columns: Mapping[str, str]) -> Iterator[Row]:
    first, line, invalid = "", "", None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        if not first and line.lstrip().startswith("["):
            advice = f"write one object in each line: jq -c '.[]' {shlex.quote(name)}"
            raise RefusedError(f"{name}:{number}: this is a JSON array; {advice}")
        first = first or line
        if invalid is not None:
            yield invalid
            invalid = None
        try:
            value = strict_json.loads(line)
        except ValueError:
            invalid = number, Unreadable("not a line of JSON", _JSON_TEXT.findall(line))
            continue
        if isinstance(value, dict):
            yield number, _by_field(value, columns)
        else:
            yield number, Unreadable("not a JSON object", _JSON_TEXT.findall(line))
    if invalid is not None or _lacks_line_feed(first, line):
        raise RefusedError(f"{name}:{number}: {_CUT}")


def _read_yaml(file: IO[str], name: str, columns: Mapping[str, str]) -> Iterator[Row]:
    text = file.read()
    content = text.encode("utf-8", "surrogateescape")
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
    is_flow = text.rstrip().endswith(("}", "]"))
    names = {column: field for field, column in columns.items()}
    for item in items:
        if not isinstance(item, yaml_loader.Mapping):
            yield item.mark.line, Unreadable("not a mapping")
            continue
        fields: Fields | Unfinished = _by_field(item, columns)
        is_open = None in fields[:3] or not text.endswith(("\n", '"', "'"))
        if item is items[-1] and is_open and not is_flow:
            fields = Unfinished(fields, names.get(next(reversed(item)), ""))
        yield item.mark.line, fields


def _by_field(members: Mapping[Any, Any], columns: Mapping[str, str]) -> Fields:
    values = [members.get(columns[field]) for field in FIELDS]
    if values[-1] is None and columns[FIELDS[-1]] in members:
        values[-1] = ""
    # Values of YAML are a subclass of str, which databases refuse.
    return tuple(str(value) if isinstance(value, str) else value for value in values)


def _yaml_text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    import yaml  # noqa: PLC0415 - for unusual text only

    dumped: Any = yaml.dump(text, default_style='"', width=sys.maxsize)
    return str(dumped).strip()


def format_option(help_text: str) -> Callable[[Any], Any]:
    formats = click.Choice(["csv", "jsonl", "yaml"])
    return click.option("--format", "form", type=formats, help=help_text)
