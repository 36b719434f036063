"""Secrets in output for operators, which backends of plugins mask, too."""

from __future__ import annotations

import pytest

from tornado_idv import Masker


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("s3cret", "s3cret"),
        ("a%2Fb", "a/b"),
        ("a b/c", "a+b%2fc"),
        ('{"token": ["s3cret"]}', "s3cret"),
        ("idv {nickname} s3cret", " s3cret"),
        ("{{s3cret}}", "{s3cret}"),
        ('é"', r"\u00e9\""),
    ],
)
def test_secret_is_masked_as_it_stands_in_a_request(secret: str, shown: str) -> None:
    mask = Masker([secret, ""])
    assert mask(f"before {secret}, {shown}: after") == "before ***, ***: after"
    assert mask({shown: [shown.encode(), True, None]}) == {"***": ["***", True, None]}


def test_numbers_are_masked_and_what_is_no_secret_is_not() -> None:
    mask = Masker(["4711", "{id}{name}"])
    assert mask([4711, 14711.5, 4712, "{}", "a"]) == ["***", "***", 4712, "{}", "a"]
    assert Masker([])("text") == "text"
