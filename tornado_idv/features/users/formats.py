"""Readers and writers of users in CSV, JSON Lines and YAML.

A file that ends within a row is refused, because more rows may be missing.
"""

import csv
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import IO, Any, Literal, NamedTuple

from tornado_idv import strict_json, yaml_loader
from tornado_idv.cli.common import RefusedError, counted
from tornado_idv.errors import ConfigError
from tornado_idv.identifiers import FIELDS
from tornado_idv.interfaces.command_tools import printable
from tornado_idv.kit.files import DELIMITERS
from tornado_idv.model import User

Format = Literal["csv", "jsonl", "yaml"]
Fields = tuple[object, ...]
"""The values of a row in the order of `FIELDS`. ``None`` stands for a missing value."""


class Unreadable(NamedTuple):
    """A row with a syntax error: the error, and the text of the row."""

    reason: str
    text: str = ""


Row = tuple[int, Fields | Unreadable]
"""The number of the first line of a row, and the row."""

REQUIRED = FIELDS[:3]
_NOT_CSV = (
    "not CSV: a quote is not closed on its line, text follows a quote, or a field is too long"
)
_NOT_A_HEADER = (
    (re.compile(r"\Z"), "the file is empty"),
    # The second alternative is the start of an .xls, opened as text.
    (re.compile("PK\x03\x04|\udcd0\udccf\x11"), "this is an Excel workbook; save it as CSV UTF-8"),
    (re.compile("\0"), "this is UTF-16; add --encoding utf-16-be, or save it as CSV UTF-8"),
    (re.compile(".*\0"), "this is UTF-16; add --encoding utf-16, or save it as CSV UTF-8"),
    (
        re.compile(r"sep=.\s*\Z"),
        "this line sets the delimiter for a spreadsheet; replace the line by --delimiter",
    ),
)
"""Patterns of a first line that is not a header, and the error for each."""
_NO_VALUE = (
    r"(?:[\W_]|total|sum|count|number|of|rows?|records?|users|lines|selected|affected|end|eof)*+"
)
_TRAILER = re.compile(
    rf"(?=.*[a-z]){_NO_VALUE}((?<!\w)\d+(?:[.,']\d{{3}})*)?{_NO_VALUE}", re.IGNORECASE | re.DOTALL
)
"""Pattern of a summary in place of the last row, such as ``Total;5000``. Group 1 is its number."""
_CUT = (
    "the file ends within this row, so more rows may be missing; nothing was changed; if the row "
    "is complete, add a line break; if this line is not a row, delete it"
)
_ENDS = ("\n", "\r", '"', "'")
"""Possible last characters of a complete row. A row with another end may be truncated."""
# The start of a value in place of a column name. Spreadsheets write ="0012", 4E+15 or 4000 1234.
_VALUE = re.compile(r"[\W_]*\d|@|https?://")
_EXTENSIONS: Mapping[str, Format] = {
    ".csv": "csv",
    ".xlsx": "csv",  # the reader of CSV rejects it with advice for workbooks
    ".json": "jsonl",  # the reader of JSON Lines rejects arrays with advice
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def format_of(name: str) -> Format | None:
    """Return the format for the extension of a file, or ``None`` if it is unknown."""
    return _EXTENSIONS.get(PurePath(name).suffix.lower())


def read_rows(
    file: IO[str], form: Format, name: str, columns: Mapping[str, str], delimiter: str
) -> Iterator[Row]:
    """Yield the rows of a file that was opened with ``errors="surrogateescape"``.

    ``name`` is the file name for messages. ``columns`` maps fields to column names. Raises
    `RefusedError` if the file has another format or ends within a row.
    """
    if form == "csv":
        return _read_csv(file, name, columns, delimiter)
    return (_read_jsonl if form == "jsonl" else _read_yaml)(file, name, columns)


def write_users(file: IO[str], form: Format, users: Iterable[User]) -> None:
    """Write users in one of the formats of `read_rows`."""
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
    first_line = file.readline()
    header = _parse_line(first_line, delimiter) or []
    for problem in _header_problems(first_line, header, columns):
        raise RefusedError(f"{name}:1: {printable(problem)}")
    width = len(header)
    # Only the last field may have no column. In this case, an empty cell is added to each row.
    names = [*header, columns[FIELDS[-1]]]
    select = itemgetter(*(names.index(columns[field]) for field in FIELDS))
    last: Row | None = None
    first, count, text = 2, 0, ""
    while lines := list(islice(file, 200)):
        for number, cells in enumerate(_parse_lines(lines, delimiter), start=first):
            if not (cells is None or (cells and cells[0].strip()) or any(map(str.strip, cells))):
                continue
            if last is not None:
                count += 1
                yield last
            text = lines[number - first]
            if cells is None:
                last = number, Unreadable(_NOT_CSV, text)
            elif len(cells) == width:
                last = number, select([*cells, None])
            else:
                last = number, Unreadable(f"{len(cells)} fields instead of {width}", text)
        first += len(lines)
    if last is None or _is_trailer(f"{name}:{last[0]}", text, count, delimiter):
        return
    # In a file with \r\n line ends, a final \r is a truncated line end.
    is_cut = not text.endswith(_ENDS[:3]) or (text.endswith("\r") and first_line.endswith("\r\n"))
    if is_cut or len(_parse_line(text, delimiter) or ()) < width:
        raise RefusedError(f"{name}:{last[0]}: {_CUT}")
    yield last


def _header_problems(line: str, header: Sequence[str], columns: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of a header line, the most likely cause first.

    No message contains a value of a user.
    """
    yield from (reason for pattern, reason in _NOT_A_HEADER if pattern.match(line))
    if not header:
        yield f"the header is {_NOT_CSV}"
    if causes := [*_column_problems(line, header, columns)]:
        yield "; ".join(causes)
    for one, other in pairwise(sorted(header)):
        if one == other != "":
            yield f"the header has two columns {one}"


def _column_problems(line: str, cells: Sequence[str], columns: Mapping[str, str]) -> Iterator[str]:
    """Yield all problems of the columns, for the operator to fix them together."""
    options = []
    if not {columns[field] for field in REQUIRED} <= {*cells}:
        for option, delimiter in DELIMITERS.items():
            if len(others := _parse_line(line, delimiter) or ()) > len(cells):
                yield f"the fields are separated by {option!r}"
                options, cells = [f"--delimiter {shlex.quote(option)}"], others
    folded = {_folded(name): name for name in cells}
    absent = {field: name for field, name in columns.items() if name not in cells}
    guessed = {field: folded.get(_folded(name)) for field, name in absent.items()}
    maps = [f"--map {shlex.quote(f'{name}={field}')}" for field, name in guessed.items() if name]
    if maps:
        yield "names of columns must match in case, blanks and hyphens"
    if maps or options:
        yield f"add {' '.join([*options, *maps])}"
    if missing := [absent[each] for each in REQUIRED if each in absent and not guessed[each]]:
        problem = f"the header has no column {', '.join(missing)}"
        if any(not name.strip() or _VALUE.match(name.strip()) for name in cells):
            yield f"{problem}; if line 1 is a user, insert the names of the columns above it"
        else:
            found = ", ".join(cells)[:500]
            yield f"{problem}; it has {found}; name them with --map, like --map nick=nickname"


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _is_trailer(place: str, line: str, count: int, delimiter: str) -> bool:
    """Return whether the last line is a summary instead of a row.

    If the line ends without a line break, a summary must have a number and no delimiter, because
    ``end`` or ``total,4`` may be the start of a truncated row. Raises `RefusedError` if the summary
    gives another number of rows than ``count``.
    """
    trailer = _TRAILER.fullmatch(line)
    is_open = not line.endswith(_ENDS[:2])
    if trailer is None or (is_open and (delimiter in line or not trailer[1])):
        return False
    if trailer[1] and int(re.sub(r"\D", "", trailer[1])) != count:
        text = f"the last line has the number {trailer[1]}, and {counted(count, 'row')} before it"
        raise RefusedError(f"{place}: {text}; rows are missing; nothing was changed")
    return True


def _parse_lines(lines: Sequence[str], delimiter: str) -> Sequence[list[str] | None]:
    """Return the cells of each line. A line with a syntax error gives ``None``.

    A field never continues on the next line, because one stray quote would then remove the users
    of all following lines.
    """
    # One reader for all lines takes a fifth of the time (CPython 3.11). If the number of rows
    # differs, a field has continued on the next line.
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
    last: Row | None = None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        if last is not None:
            yield last
        elif line.lstrip().startswith("["):
            advice = f"write one object in each line: jq -c '.[]' {shlex.quote(name)}"
            raise RefusedError(f"{name}:{number}: this is a JSON array; {advice}")
        try:
            value = strict_json.loads(line)
        except ValueError:
            last = number, Unreadable("not a line of JSON", line)
        else:
            is_object = isinstance(value, dict)
            row = _by_field(value, columns) if is_object else Unreadable("not a JSON object", line)
            last = number, row
    if last is not None:
        if isinstance(last[1], Unreadable):
            raise RefusedError(f"{name}:{last[0]}: {_CUT}")
        yield last


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
    for item in items:
        line = item.mark.line
        if not isinstance(item, yaml_loader.Mapping):
            yield line, Unreadable("not a mapping")
            continue
        fields = _by_field(item, columns)
        is_whole = None not in fields[:3] or "fault" in item
        if item is items[-1] and not (is_flow or (is_whole and text.endswith(_ENDS))):
            raise RefusedError(f"{name}:{line}: {_CUT}")
        yield line, fields


def _by_field(members: Mapping[Any, Any], columns: Mapping[str, str]) -> Fields:
    values = [members.get(columns[field]) for field in FIELDS]
    if values[-1] is None and columns[FIELDS[-1]] in members:
        values[-1] = ""
    # The strings of the YAML loader are a subclass of str, which databases refuse.
    return tuple(str(value) if isinstance(value, str) else value for value in values)


def _yaml_text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    import yaml  # noqa: PLC0415 - for unusual text only

    dumped: Any = yaml.dump(text, default_style='"', width=sys.maxsize)
    return str(dumped).strip()
