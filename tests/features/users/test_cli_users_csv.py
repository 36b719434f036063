"""``tornado-idv users import`` of a CSV that another program wrote: the cause is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from support.databases import sqlite_databases
from support.databases.sqlite_databases import ALICE, BOB
from support.databases.user_lists import HEADER, csv_row

Users = Callable[..., Result]
Source = Callable[..., Path]
LIST = HEADER + csv_row(ALICE) + csv_row(BOB)
WORKBOOK = "this is an Excel workbook; save it as CSV UTF-8"
UTF_16 = "this is UTF-16; add --encoding utf-16"
CASE = "names of columns must match in case, blanks and hyphens; add --map"
NO_HEADER = (
    "the header has no column nickname, card_number, plan; if line 1 is a user, insert the names "
    "of the columns above it"
)
OTHER_NAMES = (
    "no column nickname, plan; it has Gr\\udcf6\\udcdfe, card_number, tier\\t2, profile_url;"
)
NO_QUOTE = "the header is not CSV: a quote is not closed"
CARD = "has no valid user; first error: line 2: card_number: "
EXPONENT = f"{CARD}in exponential notation: a spread"
DIGITS = "; only digits are allowed"
LATIN = "Gr\udcf6\udcdfe"
"""Größe as it is in Latin-1."""
REFUSED = [
    (LIST.replace(",", ";"), "the fields are separated by ';'; add --delimiter ';'"),
    (LIST.replace(",", "\t"), "the fields are separated by 'tab'; add --delimiter tab"),
    (
        LIST.replace("nickname", "Nickname").replace("plan", " PLAN"),
        f"{CASE} Nickname=nickname --map ' PLAN=plan'",
    ),
    (
        LIST.replace("nickname", "Login").replace("card_number", "Card Number").replace(",", ";"),
        (
            "the fields are separated by ';'; names of columns must match in case, blanks and "
            "hyphens; add --delimiter ';' --map 'Card Number=card_number'; the header has no "
            "column nickname; it has Login, Card Number, plan, profile_url; name them with --map"
        ),
    ),
    (
        LIST.replace("card_number", "card-number").replace("plan", "_PLAN"),
        f"{CASE} card-number=card_number --map _PLAN=plan\n",
    ),
    (
        csv_row(ALICE).replace(",", ";"),
        f"the fields are separated by ';'; add --delimiter ';'; {NO_HEADER}",
    ),
    (LIST.replace("profile_url", "Profile_URL"), f"{CASE} Profile_URL=profile_url"),
    (LIST.replace("nickname", LATIN).replace("plan", "tier\t2"), OTHER_NAMES),
    (csv_row(ALICE), NO_HEADER),
    ('alice,"=""0012""",Free\n', NO_HEADER),
    ("@alice,no number,Free\n", NO_HEADER),
    ("alice,,Free\n", NO_HEADER),
    (LIST.encode("utf-16"), UTF_16),
    (LIST.encode("utf-16-be"), f"{UTF_16}-be"),
    (b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0", WORKBOOK),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0", WORKBOOK),
    ("", "the file is empty"),
    ('"nickname,card_number,plan\n', NO_QUOTE),
    (LIST.replace("profile_url", "plan"), "the header has two columns plan"),
    (f"sep=;\n{LIST}", "sets the delimiter for a spreadsheet; replace"),
    (f"{HEADER}alice,4\u00a00012,Free,\n", f"{CARD}contains no-break spaces{DIGITS}"),
    (f"{HEADER}alice,'40012,Free,\n", f"{CARD}contains an apostrophe{DIGITS}"),
    (f"{HEADER}alice,40012.0,Free,\n", f"{CARD}a number with decimals; export"),
    (f"{HEADER}alice,,Free,\n", f"{CARD}empty; see"),
    (f"{HEADER},40012,Free,\n", "line 2: nickname: empty; see"),
    (b"nickname,card_number,plan\nalice,1,Gr\xf6\n", "plan: not UTF-8; if the list has"),
    (f"{HEADER}alice,4.00012E15,Free,\n", EXPONENT),
    (f'{HEADER}alice,"4,00012e+15",Free,\n', EXPONENT),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.XLSX", "PK\x03\x04\x14\0\x06\0", WORKBOOK),
        *((f"list.{each}", "[\n{}]", "is a JSON array; write") for each in ("json", "jsonl")),
    ],
)
def test_format_is_found_by_the_extension(
    users: Users, source: Source, name: str, content: str, message: str
) -> None:
    done = users("import", source(content, name), "--to", "people")
    assert (done.exit_code, message in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("character", "option"), [(";", ";"), ("\t", "tab"), ("\t", "\t"), ("|", "|")]
)
def test_fields_are_read_with_the_given_delimiter(
    users: Users, source: Source, character: str, option: str
) -> None:
    """In the header, among valid rows and in a row that is read by itself, with a BOM in front."""
    rows = f"{HEADER}{csv_row(ALICE)}{csv_row(BOB)}carl,1,a,b,\n".replace(",", character)
    file = source(f"\ufeff{rows}dora{character}2{character}a, b{character}\n")
    done = users("import", file, "--to", "people", "--delimiter", option)
    assert (done.exit_code, "Imported 3 users" in done.stderr) == (0, True)
    exported = users("export", "--from", "people").stdout
    assert exported == LIST + 'dora,2,"a, b",\n'
    assert ":4: 5 fields instead of 4" in Path(f"{file}.rejected").read_text()
    done = users("import", source(LIST), "--to", "people", "--delimiter", option)
    assert (done.exit_code, "separated by ','; add --delimiter ," in done.stderr) == (1, True)


def test_other_columns_may_have_no_name_and_any_order(users: Users, source: Source) -> None:
    """As a spreadsheet writes empty columns; ours may have other names."""
    file = source("plan,,2fa,card,nick,\nFree,,x,1,alice,\n")
    names = ("--map", "nick=nickname", "--map", "card=card_number")
    assert users("import", file, "--to", "people", *names).exit_code == 0
    assert users("export", "--from", "people").stdout == f"{HEADER}alice,1,Free,\n"


def test_list_in_another_encoding_is_read(users: Users, folder: Path) -> None:
    for encoding, number in (("cp1252", 1), ("utf-16", 2)):
        file = folder / "list.csv"
        file.write_bytes(f"nickname,card_number,plan\nalice,{number},Grö\n".encode(encoding))
        assert users("import", file, "--to", "people", "--encoding", encoding).exit_code == 0
        assert users("export", "--from", "people").stdout == f"{HEADER}alice,{number},Grö,\n"
    done = users("import", file, "--to", "people", "--encoding", "klingon")
    assert (done.exit_code, "unknown encoding" in done.stderr) == (2, True)
    file.write_text(LIST)
    done = users("import", file, "--to", "people", "--encoding", "utf-16")
    assert (done.exit_code, "cannot be decoded; add its --encoding" in done.stderr) == (1, True)


def test_rows_without_a_value_are_none(users: Users, source: Source) -> None:
    """As a spreadsheet writes rows that were cleared."""
    file = source(LIST + " ,,,\n" + ",,\n" * 1247 + "\n")
    done = users("import", file, "--to", "people", "--max-rejected", 0, "--expect-rows", 2)
    assert (done.exit_code, "Imported 2 users" in done.stderr) == (0, True)
    assert not Path(f"{file}.rejected").exists()


def test_plans_are_counted(users: Users, source: Source) -> None:
    plans = ("Free", "Pro") * 1000
    rows = "".join(f"u{number},{number},{plan},\n" for number, plan in enumerate(plans))
    done = users("import", source(f"{HEADER}{rows}x,9999,Fre,\nTotal 2.001\n"), "--to", "people")
    assert done.stderr.splitlines()[1:] == ["Plans: Fre 1, Free 1,000, Pro 1,000."]
    many = "".join(f"u{number},{number},plan{number},\n" for number in range(21))
    done = users("import", source(HEADER + many), "--to", "people")
    assert done.stderr.splitlines()[1:] == ["Plans: 21 different ones."]
