"""When a stored key is valid, and with which tokens; the list agrees with what is accepted."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.features.keys.editor import KeyRecord, Token, to_values
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.store import to_api_key

FIRST, SECOND = Token(b"1" * 32, 10.0), Token(b"2" * 32, 20.0)


def key(*tokens: Token, **more: Any) -> KeyRecord:
    return KeyRecord("shop", 10.0, tokens or (FIRST,), **more)


def api_keys(record: KeyRecord) -> list[ApiKey]:
    """Return the key as the service reads it, for each of its tokens."""
    key_id, _, *attributes, _, disabled, revoked = to_values(record)
    return [
        to_api_key((key_id, token.digest, token.expires, *attributes, disabled, revoked))
        for token in record.tokens
    ]


@pytest.mark.parametrize(
    ("record", "now", "state"),
    [
        (key(), 0.0, "valid"),
        (key(not_before=100.0), 99.9, "not valid yet"),
        (key(expires=200.0), 200.0, "expired"),
        (key(Token(b"1", 10.0, 50.0), Token(b"2", 20.0, 90.0)), 90.0, "expired"),
        (key(Token(b"1", 10.0, 50.0), SECOND, expires=55.0), 55.0, "expired"),
        (key(disabled=True, expires=5.0), 10.0, "disabled"),
        (key(disabled=True, revoked=50.0), 60.0, "revoked"),
        (key(not_before=100.0, expires=50.0), 70.0, "expired"),
    ],
)
def test_state_of_a_key(record: KeyRecord, now: float, state: str) -> None:
    assert record.state(now) == state


TIMES = st.none() | st.integers(0, 9).map(float)


@given(st.lists(TIMES, min_size=1, max_size=3), TIMES, TIMES, st.booleans(), TIMES)
def test_key_is_listed_as_valid_exactly_while_one_of_its_tokens_is_accepted(
    ends: list[float | None],
    not_before: float | None,
    expires: float | None,
    disabled: bool,  # noqa: FBT001 - drawn
    revoked: float | None,
) -> None:
    tokens = (Token(bytes([i]) * 32, 0.0, each) for i, each in enumerate(ends))
    record = key(
        *tokens, not_before=not_before, expires=expires, disabled=disabled, revoked=revoked
    )
    found = api_keys(record)
    assert [each.digest for each in found] == [each.digest for each in record.tokens]
    for now in range(11):
        is_accepted = any(each.is_valid(float(now)) for each in found)
        assert is_accepted == (record.state(float(now)) == "valid")


def test_key_rejected_at_any_time_says_why() -> None:
    for more, rejected in [
        ({}, None),
        ({"disabled": True}, "disabled"),
        ({"disabled": True, "revoked": 5.0}, "revoked"),
    ]:
        (api_key,) = api_keys(key(expires=inf, **more))
        assert api_key.rejected == rejected
        assert api_key.is_valid(0.0) == (rejected is None)
