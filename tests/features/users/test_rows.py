"""Which users a rejected row of a list may be meant for."""

import pytest

from tornado_idv.features.users.formats import Unreadable
from tornado_idv.features.users.rows import named_users
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.options import compile_pattern

IDENTIFIERS = Identifiers([ProfileSite.parse("https://profiles.example")], card_length=(2, 16))
FULL_WIDTH = str.maketrans(
    "0123456789alice", "".join(chr(ord(c) + 0xFEE0) for c in "0123456789alice")
)


@pytest.mark.parametrize(
    ("nickname", "named"),
    [
        ("alice", ["alice"]),
        ("@alice", ["alice"]),
        (" alice\t", ["alice"]),
        ("\u00a0@alice\u200b", ["alice"]),
        ("alice\udca0", ["alice"]),
        ("alice".translate(FULL_WIDTH), ["alice"]),
        ("al\udcffice", []),
        ("\u00e1lice", []),
        ("", []),
        (None, []),
        (["alice"], []),
    ],
)
def test_nickname_names_its_user_without_what_spreadsheets_add(
    nickname: object, named: list[str]
) -> None:
    found = named_users((nickname, None, "Free", None), IDENTIFIERS)
    assert [*found] == [(each, None) for each in named]


@pytest.mark.parametrize(
    ("card_number", "named"),
    [
        ("4000", {"4000"}),
        ("'4000", {"4000"}),
        ('="0400"', {"0400"}),
        ("4000\u20131234", {"40001234"}),
        ("4000,00", {"4000", "400000"}),
        ("4000".translate(FULL_WIDTH), {"4000"}),
        ("4.0001E+15", set()),
        ("4000x", set()),
        ("4" * 17, set()),
        (4000, {"4000"}),
        (None, set()),
        (4.5, set()),
    ],
)
def test_card_number_names_its_user_without_what_spreadsheets_add(
    card_number: object, named: set[str]
) -> None:
    """Decimals may be digits after a separator of thousands; digits of an exponent are lost."""
    found = [*named_users((None, card_number, "Free", None), IDENTIFIERS)]
    assert (len(found), {*found}) == (len(named), {(None, each) for each in named})


def test_valid_nickname_names_no_other_user() -> None:
    """Even if one without its quotes were valid, too."""
    identifiers = Identifiers(IDENTIFIERS.sites, is_nickname=compile_pattern("[a-z']+"))
    found = named_users(("@o'neil", "4000", "", None), identifiers)
    assert [*found] == [("o'neil", None), (None, "4000")]


def test_every_word_of_a_row_that_is_not_of_the_format_may_name_its_user() -> None:
    row = Unreadable("not CSV", '"alice";4000 1234|@bob,[x]\n')
    named = {*named_users(row, IDENTIFIERS)}
    nicknames = {each for each, _ in named if each}
    assert {"alice", "bob", "x"} <= nicknames
    assert {"4000", "1234"} == {card for _, card in named if card}
