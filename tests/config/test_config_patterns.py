"""Regular expressions that a hostile nickname makes slow are found before they are served."""

import re
from collections.abc import Callable

import pytest

from tornado_idv.config.patterns import is_slow, slow_patterns
from tornado_idv.config.settings import Settings
from tornado_idv.identifiers import MAX_NICKNAME, Identifiers

Load = Callable[..., Settings]


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "([a-z]+)*",
        "([a-z]+-?)*",
        "(a|aa)+",
        "user_([a-z]+)+",
        r"(?:admin|user)-(?P<rest>\w+)+",
        "[A-Z][0-9]{3}([a-z]+)*x",
        "(foo|foofoo)*",
        "(([a-mx]|[n-zx])+)+",
        "(.*)*",
        ".*.*.*.*=.*",
    ],
)
def test_an_expression_that_backtracks_for_long_is_slow(pattern: str) -> None:
    assert is_slow(re.compile(pattern, re.ASCII), Identifiers(sites=[]).candidate)


@pytest.mark.parametrize(
    "pattern",
    [
        "[A-Za-z0-9_.-]{1,64}",
        "[a-z]+(-[a-z]+)*",
        "[a-z][a-z0-9]*([._-][a-z0-9]+)*",
        r"(?!.*\.\.)[a-z.]{3,30}",
        "alice|bob|carol|dave|mallory",
        r"(.)\1*",
        ".*",
        "",
    ],
)
def test_an_expression_without_nested_repetitions_is_fast(pattern: str) -> None:
    assert not is_slow(re.compile(pattern, re.ASCII), Identifiers(sites=[]).candidate)


BACKENDS = """\
profile_sites: [https://profiles.example]
backends:
  - {name: a, kind: table, path: a, match: '@.*'}
  - {name: b, kind: table, path: b, match: '@emp-([a-z]+)*'}
  - {name: c, kind: table, path: c, match: '(?:@[a-z]+)+'}
"""


@pytest.mark.slow
def test_match_is_tried_with_valid_queries_only(load_text: Load) -> None:
    """Only one @ is ever in a query, so the last one is fast."""
    assert list(slow_patterns(load_text(BACKENDS))) == [("backends", 1, "match")]


def test_a_match_that_is_slow_for_invalid_nicknames_only_is_fast(load_text: Load) -> None:
    text = BACKENDS + "identifiers: {nickname_pattern: '[a-z]{1,8}'}"
    assert list(slow_patterns(load_text(text))) == []


def test_a_nickname_has_a_maximum_length_whatever_its_pattern() -> None:
    identifiers = Identifiers(sites=[], nickname=re.compile("a*", re.ASCII))
    assert identifiers.parse_nickname("a" * MAX_NICKNAME)
    assert identifiers.candidate("a" * (MAX_NICKNAME + 1)) is None
