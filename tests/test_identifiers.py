"""Any text is a query or `InvalidFormat`, by the same grammar as one written out here."""

import string
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import MAX_NICKNAME, Identifiers, ProfileSite
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User
from tornado_idv.options import compile_pattern


class Site(NamedTuple):
    """A site in pieces: what may be written in any case, the ports it may have, its path."""

    origin: str
    ports: tuple[str, ...]
    path: str


SITES = (
    Site("https://profiles.example", ("", ":443"), ""),
    Site("http://localhost", (":8000",), ""),
    Site("http://example.org", ("", ":80"), "/Our/people"),
    Site("https://[2001:db8::1]", ("", ":443"), ""),
    Site("https://profiles.example", ("", ":443"), "/m"),
)
WRITTEN = [site.origin + site.ports[0] + site.path for site in SITES]
IDENTIFIERS = Identifiers(sites=[ProfileSite.parse(text) for text in WRITTEN])
FOLDING = Identifiers(sites=IDENTIFIERS.sites, nickname_case="fold")

LOWERED = dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True))
NAME_CHARACTERS = string.ascii_letters + string.digits + "_.-"
# Long s and the Kelvin sign fold to ASCII; then digits of other scripts, and what editors hide.
TROUBLE = "@/:\\?#%.~+[]mM08 \t\r\n\0\u017f\u212a\u0664\uff14\u00b2\u200b\u2024\uff20\ufeff\ud800"


def is_nickname(text: str) -> bool:
    return (
        1 <= len(text) <= 64
        and all(character in NAME_CHARACTERS for character in text)
        and any(character != "." for character in text)
    )


def is_card(text: str, fewest: int = 1, most: int = 32) -> bool:
    return fewest <= len(text) <= most and all(character in "0123456789" for character in text)


def without(text: str, beginning: str) -> str | None:
    """What follows a beginning, None where the text does not begin so."""
    for expected in beginning:
        if not text or text[0] != expected:
            return None
        text = text[1:]
    return text


def after_site(text: str, site: Site) -> list[str]:
    """What may follow the site's ``/m/`` in a text, one for each way to read it."""
    origin, rest = text[: len(site.origin)], text[len(site.origin) :]
    if "".join(LOWERED.get(character, character) for character in origin) != site.origin:
        return []
    names = [without(rest, f"{port}{site.path}/m/") for port in site.ports]
    return [name for name in names if name is not None]


def named_by(text: str) -> str | None:
    """The nickname that a text names by the grammar, None where it is in no valid form."""
    if text[:1] == "@":
        return text[1:] if is_nickname(text[1:]) else None
    for site in SITES:
        for name in after_site(text, site):
            bare = name[:-1] if name[-1:] == "/" else name
            if is_nickname(bare):
                return bare
    return None


def outcome(parse: Callable[[str], Query], text: str) -> Query | None:
    """What a text is parsed to, None for `InvalidFormat`; any other error is the test's."""
    try:
        return parse(text)
    except InvalidFormat:
        return None


def in_any_case(text: str) -> st.SearchStrategy[str]:
    # One number with a bit for each character is drawn faster than a list.
    return st.integers(0, 2 ** len(text) - 1).map(
        lambda ups: "".join(c.upper() if ups >> i & 1 else c for i, c in enumerate(text))
    )


nicknames = st.text(NAME_CHARACTERS, min_size=1, max_size=64).filter(is_nickname)


@st.composite
def urls(draw: st.DrawFn, names: st.SearchStrategy[str]) -> str:
    site = draw(st.sampled_from(SITES))
    origin = draw(in_any_case(site.origin))
    port = draw(st.sampled_from(site.ports))
    return f"{origin}{port}{site.path}/m/{draw(names)}{draw(st.sampled_from(['', '/']))}"


@st.composite
def near_misses(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text with a few characters put in place of some of its own, or of none."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 2)))
        text = text[:start] + draw(st.text(TROUBLE, max_size=2)) + text[end:]
    return text


long_names = st.text(NAME_CHARACTERS + "...", min_size=60, max_size=68) | st.text(".", max_size=66)
right_spellings = urls(nicknames) | nicknames.map("@{}".format)
spellings = right_spellings | urls(long_names) | long_names.map("@{}".format)
inputs = spellings | near_misses(spellings) | st.text() | st.text(TROUBLE)
digits = st.text(string.digits, max_size=34)
cards = digits | near_misses(digits) | st.text() | st.text(TROUBLE)


@given(inputs)
def test_input_is_accepted_by_the_grammar_and_by_nothing_else(text: str) -> None:
    name = named_by(text)
    assert outcome(IDENTIFIERS.parse_input, text) == (None if name is None else ByNickname(name))


@pytest.mark.parametrize("fewest_and_most", [(1, 32), (16, 16), (4, 8)], ids=str)
@given(text=cards)
def test_a_card_number_is_ascii_digits_of_the_configured_length(
    fewest_and_most: tuple[int, int], text: str
) -> None:
    identifiers = Identifiers(sites=[], card_length=fewest_and_most)
    expected = ByCard(text) if is_card(text, *fewest_and_most) else None
    assert outcome(identifiers.parse_card, text) == expected


@given(inputs | cards)
def test_digits_are_a_card_number_and_other_text_is_input(text: str) -> None:
    other = named_by(text)
    expected = ByCard(text) if is_card(text) else other and ByNickname(other)
    assert outcome(IDENTIFIERS.parse_any, text) == expected


@pytest.mark.parametrize("identifiers", [IDENTIFIERS, FOLDING], ids=["preserve", "fold"])
@given(text=right_spellings)
def test_the_canonical_form_is_a_fixed_point_in_lower_case_if_folded(
    identifiers: Identifiers, text: str
) -> None:
    query = identifiers.parse_input(text)
    name = named_by(text) or ""
    assert query.nickname == (name.lower() if identifiers is FOLDING else name)
    assert identifiers.parse_any(query.text) == query
    for site in identifiers.sites:
        assert identifiers.parse_input(f"{site.prefix}/m/{query.nickname}") == query


@pytest.mark.parametrize(
    ("pattern", "case", "accepted", "refused"),
    [
        ("[a-z]{3}", "preserve", ["abc"], ["ab", "abcd", "ABC", "abc\n"]),
        ("[a-z]+", "fold", ["abc", "ABC"], ["ab1", "AB\u212a"]),
        (r"(?i)k|\d|\w+", "preserve", ["K"], ["\u212a", "\u0663", "\u03c3"]),
        ("a*", "preserve", ["a" * MAX_NICKNAME], ["a" * (MAX_NICKNAME + 1)]),
    ],
    ids=["whole", "folded before", "ASCII alone", "maximum length"],
)
def test_the_configured_pattern_matches_whole_nicknames(
    pattern: str, case: Literal["preserve", "fold"], accepted: list[str], refused: list[str]
) -> None:
    """The Kelvin sign is a letter k, and an Arabic digit is a digit, to a pattern."""
    is_nickname = compile_pattern(pattern)
    identifiers = Identifiers(IDENTIFIERS.sites, is_nickname=is_nickname, nickname_case=case)
    for name in [*accepted, *refused]:
        is_accepted = name in accepted
        for text in (f"@{name}", f"https://profiles.example/m/{name}"):
            assert (outcome(identifiers.parse_input, text) is not None) == is_accepted
        assert identifiers.accepts(User("Free", "4000", name)) == is_accepted


@pytest.mark.parametrize("order", [1, -1], ids=["outer first", "inner first"])
def test_a_site_within_another_site_has_its_own_users(order: int) -> None:
    sites = ["https://s.example", "https://s.example/m"][::order]
    identifiers = Identifiers(sites=[ProfileSite.parse(text) for text in sites])
    assert identifiers.parse_input("https://s.example/m/alice") == ByNickname("alice")
    assert identifiers.parse_input("https://s.example/m/m/alice") == ByNickname("alice")
    assert identifiers.parse_input("https://s.example/m/m/") == ByNickname("m")


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("HTTPS://Profiles.EXAMPLE", "https://profiles.example"),
        ("https://profiles.example/", "https://profiles.example"),
        ("https://profiles.example//", "https://profiles.example"),
        ("https://profiles.example:443", "https://profiles.example"),
        ("http://profiles.example:80/", "http://profiles.example"),
        ("http://profiles.example:443", "http://profiles.example:443"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://[2001:DB8::1]", "https://[2001:db8::1]"),
        ("https://example.org/Team/a~b.c/", "https://example.org/Team/a~b.c"),
    ],
)
def test_a_site_has_one_canonical_spelling(text: str, prefix: str) -> None:
    assert ProfileSite.parse(text).prefix == prefix
    assert ProfileSite.parse(prefix) == ProfileSite.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("https://", "https:///people", "//profiles.example", "ftp://profiles.example"),
        *("https:profiles.example", "https://*.example", "https://me:secret@profiles.example"),
        *("https://[::1", "https://profiles.example?a=b", "https://profiles.example/#top"),
        *("https://profiles.example:", "https://profiles.example:\u0664\u0664\u0663"),
        *(f"https://profiles.example/{path}" for path in ("\u00e9", "a%20b", "a//b", ".", "../a")),
        *("https://profiles.example\\m", "https://profiles.example\n", " https://profiles.example"),
        *("https://pro\u017files.example", "https://\u212a.example"),
    ],
    ids=ascii,
)
def test_an_invalid_site_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a site address"):
        ProfileSite.parse(text)


@given(near_misses(st.sampled_from(WRITTEN)) | st.text())
def test_any_text_is_a_site_or_rejected(text: str) -> None:
    try:
        site = ProfileSite.parse(text)
    except ValueError:
        return
    user = Identifiers(sites=[site]).parse_input(f"{site.prefix}/m/alice")
    assert user == ByNickname("alice")


def test_the_profile_url_is_the_user_s_own_or_on_the_first_site() -> None:
    own = User("Free", "1", "alice", "https://elsewhere.example/alice")
    assert IDENTIFIERS.profile_url(own) == "https://elsewhere.example/alice"
    assert IDENTIFIERS.profile_url(User("Free", "1", "bob")) == "https://profiles.example/m/bob"


@given(inputs | nicknames, cards)
def test_an_accepted_record_can_be_queried(nickname: str, card_number: str) -> None:
    expected = is_nickname(nickname) and is_card(card_number)
    assert IDENTIFIERS.accepts(User("Free", card_number, nickname)) == expected


@given(inputs | nicknames)
def test_folding_makes_no_other_nickname_valid_than_case_can(name: str) -> None:
    """The Kelvin sign, whose lower case is a "k", stays what it is."""
    user = User("Free", "4000", name)
    assert FOLDING.accepts(user) == is_nickname(name)
    assert FOLDING.shown(user)[0] == (name.lower() if name.isascii() else name)


def test_an_error_does_not_repeat_the_input() -> None:
    for text, reason in (
        ("@alice!", "nickname_invalid"),
        ("https://evil.example/m/alice", "other_site"),
        ("alice", "nickname_without_at"),
        ("http://example.org/alice", "url_without_m"),
        ("https://example.org/alice", "other_scheme"),
        ("https://profiles.example#alice", "url_without_m"),
    ):
        with pytest.raises(InvalidFormat) as caught:
            IDENTIFIERS.parse_any(text)
        assert caught.value.reason == reason
        assert "alice" not in repr(caught.value)


ALICE = User("Free", "4000123412341234", "alice", "https://profiles.example/m/alice")


@pytest.mark.parametrize(
    "value",
    [ALICE, ByNickname("alice"), ByCard("4000123412341234"), Answer(ALICE, "crm", 1.0, b"alice")],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_holds_no_personal_data(value: object) -> None:
    for text in (repr(value), str(value), f"{value}"):
        assert "alice" not in text
        assert "4000" not in text
