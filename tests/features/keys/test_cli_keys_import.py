"""``tornado-idv keys import``."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import Result

from support.databases.key_stores import make_store, read
from support.processes.process import Invoke
from tornado_idv.keys.token import digest
from tornado_idv.units import Rate

Import = Callable[..., Result]


def line(key_id: str, **members: object) -> str:
    return json.dumps({"id": key_id, "sha256": sha256(key_id.encode()).hexdigest(), **members})


@pytest.fixture
def import_lines(invoke: Invoke, path: Path) -> Import:
    """Imports lines from standard input."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> Result:
        arguments = ("keys", "import", "-", "--create", "--store", path, *options)
        return invoke(*arguments, stdin="".join(f"{each}\n" for each in lines).encode())

    return run


def test_keys_are_imported_with_their_attributes(import_lines: Import, path: Path) -> None:
    whole = line(
        "shop",
        owner="web shop",
        scopes=["identify:card"],
        created="2025-01-01T00:00:00Z",
        not_before="2026-01-01T00:00:00Z",
        expires="2027-01-01T00:00:00+01:00",
        requests="100/second",
        misses="300/10 minutes",
        note="from the old system",
        disabled=True,
    )
    result = import_lines(whole, "", line("plain"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Imported 2 keys.\n" in result.stderr
    plain, shop = read(path).values()
    assert plain.tokens[0].digest == digest("plain")
    assert (shop.id, shop.owner, shop.note) == ("shop", "web shop", "from the old system")
    assert (shop.scopes, shop.disabled) == (("identify:card",), True)
    assert (shop.not_before, shop.expires) == (1767225600.0, 1798758000.0)
    assert shop.created == shop.tokens[0].created == 1735689600.0
    assert (shop.requests, shop.misses) == (Rate(100, 1), Rate(300, 600))


def test_later_use_of_an_equal_key_is_imported(import_lines: Import, path: Path) -> None:
    import_lines(line("shop"))
    used = line("shop", last_used="2026-01-01T00:00:00Z")
    result = import_lines(used, options=("--update",))
    assert "Imported 0 keys, updated 0; 1 were equal.\n" in result.stderr
    assert read(path)["shop"].last_used == 1767225600.0


LATE, NO_TIME = "9999-12-31T23:59:59-12:00", "must be a time from 1970 on and before the year 9999"
TIMES = ("created", "not_before", "expires", "revoked", "last_used")
WRONG = [
    ("shop", "not a line of JSON"),
    ("[]", "must be an object"),
    (json.dumps({"sha256": "0" * 64}), "id: is missing"),
    ('{"id": "x"}', "sha256: is required unless there are tokens"),
    (line("a_b"), "id: must be 1 to 64 letters, digits, . and -"),
    (line("x", sha256="00"), "sha256: must be 64 hexadecimal digits"),
    (line("x", token="idv_x"), "token: is not a member of a key"),
    (line("x", idv_shop_QFmcf6EWP9QahxDlTtEjbVgTfpXCotL8_133ca667=1), "is not a member of a key"),
    (line("x", scopes=["all"]), "scopes[0]: Input should be"),
    (line("x", scopes=[]), "scopes: "),
    (line("x", expires="2027-01-01T00:00:00"), "expires: the time zone is missing"),
    (line("x", expires=2027), "expires: not a date and time"),
    (line("x", disabled="yes"), "disabled: must be true or false"),
    *((line("x", **{name: LATE}), f"{name}: {NO_TIME}") for name in TIMES),
    *(
        (line("x", sha256=None, tokens=[{"sha256": "1" * 64, name: LATE}]), f"tokens[0].{name}: ")
        for name in ("created", "expires")
    ),
    (line("x", requests="100"), "requests: not a rate"),
    *((line("x", **{name: "a\nb"}), f"{name}: must be at most 200 ") for name in ("owner", "note")),
    (
        line("x", not_before="2027-01-01T00:00:00Z", expires="2026-01-01T00:00:00Z"),
        "expires: must be after not_before",
    ),
    (line("x", tokens=[{"sha256": "1" * 64}]), "sha256: cannot be combined with tokens"),
    ('{"id": "x", "tokens": []}', "tokens: "),
    ('{"id": "x", "tokens": [{}]}', "tokens[0].sha256: is missing"),
    (line("good", sha256="0" * 64), "id: the same as in line 1"),
    (
        line("x", sha256=None, tokens=[{"sha256": "1" * 64}, {"sha256": digest("good").hex()}]),
        "sha256: the same as in line 1",
    ),
    (line("shop"), "the key shop exists already"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_line_is_reported_with_its_number_and_nothing_is_imported(
    import_lines: Import, path: Path, wrong: str, message: str
) -> None:
    make_store(path, "shop")
    known = read(path)
    result = import_lines(line("good"), "", wrong)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"<stdin>:3:1: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert read(path) == known


def test_all_wrong_lines_are_reported(import_lines: Import, path: Path) -> None:
    result = import_lines("x", line("a", scopes=0, note=0), options=("--json",))
    assert (result.exit_code, result.stderr) == (1, "")
    problems = json.loads(result.stdout)["problems"]
    assert [(each["line"], each["path"]) for each in problems] == [
        (1, ""),
        (2, "scopes"),
        (2, "note"),
    ]
    assert not path.exists()


def test_file_without_keys_is_error_and_creates_no_store(import_lines: Import, path: Path) -> None:
    result = import_lines("", " ")
    assert (result.exit_code, result.stderr) == (1, "<stdin>: there is no key in it\n")
    assert not path.exists()
