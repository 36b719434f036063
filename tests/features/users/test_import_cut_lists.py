"""``tornado-idv users import`` of a list that lost its tail: refused, or only whole rows of it."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from support.databases.user_lists import HEADER
from tornado_idv import User
from tornado_idv.cli.common import RefusedError
from tornado_idv.features.users.formats import Format, Unreadable, read_rows
from tornado_idv.features.users.rows import parse_user
from tornado_idv.identifiers import FIELDS, Identifiers, ProfileSite

IDENTIFIERS = Identifiers([ProfileSite.parse("https://profiles.example")])
SITE = "https://elsewhere.example"
Users = Callable[..., Result]
Source = Callable[..., Path]
COLUMNS = {name: name for name in FIELDS}
ROWS = [
    ("ana", "4000", "Free", ""),
    ("ben", "4001", "Free", f"{SITE}/b"),
    ("carl", "4002", "Professional", ""),
    ("dora", "4003", "Professional", ""),
    ("emil", "4004", "Pro", f"{SITE}/emil"),
]
CSV = "".join(f"{','.join(row)}\n" for row in [FIELDS, *ROWS])
PLAN_LAST = "".join(f"{url},{name},{card},{plan}\n" for name, card, plan, url in [FIELDS, *ROWS])
CARD_LAST = "".join(f"{name};{plan};{card}\n" for name, card, plan, _ in [FIELDS, *ROWS])
QUOTED = "".join(",".join(f'"{cell}"' for cell in row[:3]) + "\n" for row in [FIELDS, *ROWS])
JSONL = "".join(
    f'{{"nickname": "{name}", "plan": "{plan}", "card_number": "{card}", "profile_url": "{url}"}}\n'
    for name, card, plan, url in ROWS
)
BLOCK = "users:\n" + "".join(
    f"  - nickname: {name}\n    card_number: {card}\n    plan: {plan}\n"
    for name, card, plan, _ in ROWS
)
FLOW = "users:\n" + "".join(
    f"  - {{nickname: {name}, card_number: {card}, plan: {plan}}}\n" for name, card, plan, _ in ROWS
)
LISTS: dict[str, tuple[str, Format, str]] = {
    "csv": (CSV, "csv", ","),
    "csv, plan last": (PLAN_LAST, "csv", ","),
    "csv, card number last": (CARD_LAST, "csv", ";"),
    "csv, quoted": (QUOTED, "csv", ","),
    "csv, lines of Windows": (PLAN_LAST.replace("\n", "\r\n"), "csv", ","),
    "jsonl": (JSONL, "jsonl", ","),
    "jsonl, lines of Windows": (JSONL.replace("\n", "\r\n"), "jsonl", ","),
    "yaml": (BLOCK, "yaml", ","),
    "yaml, flow": (FLOW, "yaml", ","),
}


def load(text: str, form: Format, delimiter: str) -> set[tuple[object, ...]]:
    """Return the users in the valid rows of a list."""
    rows = read_rows(io.StringIO(text, newline=""), form, "list", COLUMNS, delimiter)
    users = [parse_user(row, IDENTIFIERS) for _, row in rows if not isinstance(row, Unreadable)]
    return {(u.nickname, u.card_number, u.plan) for u in users if isinstance(u, User)}


@pytest.mark.parametrize(("text", "form", "delimiter"), LISTS.values(), ids=LISTS)
def test_list_that_is_cut_anywhere_gives_whole_rows_or_is_refused(
    text: str, form: Format, delimiter: str
) -> None:
    """Of a row that is not whole, nothing is taken."""
    whole = [row[:3] for row in ROWS]
    assert load(text, form, delimiter) == {*whole}
    assert {type(each) for user in load(text, form, delimiter) for each in user} == {str}
    ends = [end for end in range(len(text)) if text[:end].endswith("\n")]
    refused = 0
    for size in range(1, len(text)):
        try:
            users = load(text[:size], form, delimiter)
        except RefusedError:
            refused += 1
            continue
        assert users == {*whole[: len(users)]}, text[:size]
    assert refused >= (len(text) - len(ends)) * 0.8


@pytest.mark.parametrize(
    "rows",
    [
        "ana,1,Free\nben,2,Free\r",
        'ana,1,Free\nben,2,"Pro"',
        "ana,1,Free\nben,2,Free\nTotal,2\n",
        "ana,1,Free\nben,2,Free\n(2 rows)\n",
        "ana,1,Free\nben,2,Free\nTotal;2",
        "ana,1,Free\nben,2,Free\nTotal,2,\n",
        "ana,1,Free\nben,2,Free\nEOF\n\n",
    ],
)
def test_list_that_is_whole_is_imported(rows: str) -> None:
    """Its last row may lack a line break, and its last line may be no row."""
    users = load(f"nickname,card_number,plan\n{rows}", "csv", ",")
    assert {"ana", "ben"} <= {nickname for nickname, *_ in users} <= {"ana", "ben", "carl"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("ana,1,Free,\nTotal,5000\n", "the last line has the number 5000, and 1 row before it"),
        ("ana,1,Free,\n(2 rows)", "the last line has the number 2, and 1 row before"),
        ("ana,1,Free,\nben,2\n", ":3: the file ends within this row, so more rows may be"),
        ('ana,1,Free,\nben,"2\n', ":3: the file ends within this row"),
        ("ana,1,Free,\nben,2,Pro", ":3: the file ends within this row"),
        ("ana,1,Free,\nend", ":3: the file ends within this row"),
        ("ana,1,Free,\ntotal,1", ":3: the file ends within this row"),
        (f"ana,1,Free,{SITE}/a\nben,2,Pro,http", "if the row is complete, add a line break"),
        (f"ana,1,Free,{SITE}/a\nben,2,Pro,", "if the row is complete, add a line break"),
    ],
)
def test_cut_list_is_named(users: Users, source: Source, rows: str, message: str) -> None:
    """The report of the import before is deleted, because this one has rejected no row."""
    file = source(HEADER + rows)
    report = Path(f"{file}.rejected")
    report.touch()
    done = users("import", file, "--to", "people", "--merge")
    assert (done.exit_code, message in done.stderr) == (1, True), done.stderr
    assert "nothing was changed" in done.stderr
    assert "ben" not in done.stderr
    assert not report.exists()


def test_list_cut_within_its_last_line_break_is_refused() -> None:
    with pytest.raises(RefusedError, match=":3: the file ends within this row"):
        load(f"{HEADER}ana,1,Free,\nben,2,Pro,\n".replace("\n", "\r\n")[:-1], "csv", ",")


def test_rejected_rows_of_a_descriptor_are_in_the_current_folder(
    users: Users, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``import <(command)``, whose file the shell names /dev/fd/63."""
    monkeypatch.chdir(folder)
    with (folder / "list.csv").open("w+") as file:
        file.write(f"{HEADER}ana,1,Free,\nben,x,Free,\ncarl,2,Free,\n")
        for place in ("/proc/self/fd", "/dev/fd"):
            file.seek(0)
            path = f"{place}/{file.fileno()}"
            done = users("import", path, "--to", "people", "--format", "csv", "--dry-run")
            assert (done.exit_code, "see stdin.rejected" in done.stderr) == (0, True)
    assert Path("stdin.rejected").read_text().startswith(f"{path}:3: card_number: ")
    assert Path("stdin.changes").read_text() == "added @ana\nadded @carl\n"


def test_fault_of_the_double_at_the_end_does_not_make_a_list_incomplete() -> None:
    fault = "  - nickname: down\n    fault:\n      status: 503\n"
    assert load(BLOCK + fault, "yaml", ",") == {row[:3] for row in ROWS}
    for flow in (FLOW[:-1], f"users: [{FLOW.splitlines()[1].strip(' -')}]"):
        assert ("ana", "4000", "Free") in load(flow, "yaml", ",")
    with pytest.raises(RefusedError, match="the file ends within this row"):
        load(BLOCK[: BLOCK.rindex("    plan")], "yaml", ",")
