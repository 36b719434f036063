"""``tornado-idv users import`` of a CSV that another program wrote: the cause is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from support.databases import sqlite_databases
from support.databases.sqlite_databases import ALICE, BOB
from support.databases.user_lists import HEADER, csv_row

Users = Callable[..., Result]
LIST = HEADER + csv_row(ALICE) + csv_row(BOB)
WORKBOOK = "this is an Excel workbook; save it as CSV UTF-8"
UTF_16 = "this is UTF-16; save it as CSV UTF-8, or convert it: iconv -f UTF-16 -t UTF-8"
CASE = "case and blanks count in the names of columns; add --map"
NO_HEADER = (
    "the header has no column nickname, card_number, plan, and may be a user; write the names of "
    "the columns into line 1"
)
OTHER_NAMES = (
    "no column nickname, plan; it has Gr\\udcf6\\udcdfe, card_number, tier\\t2, profile_url;"
)
NO_QUOTE = "the header is not CSV: a quote is not closed"
BLANKS = "has no valid user; the first for line 2: card_number: contains blanks; only digits"
EXPONENT = "has no valid user; the first for line 2: card_number: in exponential notation, by which"
LATIN = "Gr\udcf6\udcdfe"
"""Größe as it is in Latin-1."""
REFUSED = {
    "semicolons": (LIST.replace(",", ";"), "the fields are separated by ';'; add --delimiter ';'"),
    "tabs": (LIST.replace(",", "\t"), "the fields are separated by 'tab'; add --delimiter tab"),
    "another case": (
        LIST.replace("nickname", "Nickname").replace("plan", " PLAN"),
        f"{CASE} Nickname=nickname --map ' PLAN=plan'",
    ),
    "another case of the optional column": (
        LIST.replace("profile_url", "Profile_URL"),
        f"{CASE} Profile_URL=profile_url",
    ),
    "other names": (LIST.replace("nickname", LATIN).replace("plan", "tier\t2"), OTHER_NAMES),
    "no header": (csv_row(ALICE), NO_HEADER),
    "no header, a formula": ('alice,"=""0012""",Free\n', NO_HEADER),
    "no header, an exponent": ("alice,4.00012E+15,Free\n", NO_HEADER),
    "no header, @ in front": ("@alice,,Free\n", NO_HEADER),
    "no header, an empty cell": ("alice,,Free\n", NO_HEADER),
    "no header, blanks in front": ("alice, 0012,Free\n", NO_HEADER),
    "UTF-16": (LIST.encode("utf-16"), UTF_16),
    "UTF-16, big-endian, no byte order mark": (LIST.encode("utf-16-be"), UTF_16),
    "xlsx": (b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0", WORKBOOK),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0", WORKBOOK),
    "empty": ("", "the file is empty"),
    "quote": ('"nickname,card_number,plan\n', NO_QUOTE),
    "a column twice": (LIST.replace("profile_url", "plan"), "the header has two columns plan"),
    "another column twice": (
        LIST.replace("profile_url", "note,note"),
        "the header has two columns note",
    ),
    "blanks in a card number": (f"{HEADER}alice,4000 1234,Free,\n", BLANKS),
    "no-break spaces in a card number": (f"{HEADER}alice,4000\u00a01234,Free,\n", BLANKS),
    "exponent in a card number": (f"{HEADER}alice,4.00012E+15,Free,\n", EXPONENT),
    "exponent with a decimal comma": (f'{HEADER}alice,"4,00012E+15",Free,\n', EXPONENT),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_cause_is_named_without_a_value_and_nothing_is_changed(
    users: Users, folder: Path, content: str | bytes, message: str
) -> None:
    path = sqlite_databases.write(folder / "people.db", BOB)
    before = path.read_bytes()
    file = folder / "list.csv"
    text = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    file.write_bytes(text)
    done = users("import", file, "--to", "people")
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.startswith(f"{file}:")
    assert "alice" not in done.stderr
    assert "0012" not in done.stderr
    assert path.read_bytes() == before


def test_workbook_is_named_by_its_extension_too(users: Users, folder: Path) -> None:
    file = folder / "list.XLSX"
    file.write_bytes(b"PK\x03\x04\x14\0\x06\0")
    done = users("import", file, "--to", "people")
    assert (done.exit_code, WORKBOOK in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("character", "option"), [(";", ";"), ("\t", "tab"), ("\t", "\t"), ("|", "|")]
)
def test_fields_are_read_with_the_given_delimiter(
    users: Users, source: Callable[..., Path], character: str, option: str
) -> None:
    """In the header, among valid rows and in a row that is read by itself, with a BOM in front."""
    rows = f"{HEADER}{csv_row(ALICE)}{csv_row(BOB)}carl,1,a,b,\n".replace(",", character)
    file = source(f"\ufeff{rows}dora{character}2{character}a, b{character}\n")
    done = users("import", file, "--to", "people", "--delimiter", option)
    assert (done.exit_code, "Imported 3 users" in done.stderr) == (0, True)
    exported = users("export", "--from", "people").stdout
    assert exported == LIST + 'dora,2,"a, b",\n'
    assert ":4: 5 fields instead of 4" in Path(f"{file}.rejected").read_text()


def test_comma_is_named_where_another_delimiter_is_given(
    users: Users, source: Callable[..., Path]
) -> None:
    done = users("import", source(LIST), "--to", "people", "--delimiter", ";")
    assert (done.exit_code, "separated by ','; add --delimiter ," in done.stderr) == (1, True)


def test_other_columns_may_have_no_name_and_any_order(
    users: Users, source: Callable[..., Path]
) -> None:
    """As a spreadsheet writes empty columns; ours may have other names."""
    file = source("plan,,2fa,card,nick,\nFree,,x,1,alice,\n")
    names = ("--map", "nick=nickname", "--map", "card=card_number")
    assert users("import", file, "--to", "people", *names).exit_code == 0
    assert users("export", "--from", "people").stdout == f"{HEADER}alice,1,Free,\n"
