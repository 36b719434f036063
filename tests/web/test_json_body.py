"""The JSON that asks and the JSON that answers, for any text."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.model import User
from tornado_idv.web.json_body import encode_user, parse_object, text_member

IDENTIFIERS = Identifiers((ProfileSite.parse("https://profiles.example"),))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=10,
)


def parse_input(body: bytes) -> str:
    return text_member(parse_object(body), "input")


@given(TEXTS, st.booleans())
def test_a_text_member_comes_through_unchanged(text: str, ascii_only: bool) -> None:  # noqa: FBT001
    body = json.dumps({"other": [1], "input": text}, ensure_ascii=ascii_only)
    assert parse_input(body.encode()) == text


@given(st.binary())
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidFormat):
        assert isinstance(parse_input(body), str)


@given(JSON_VALUES.filter(lambda value: not isinstance(value, str)))
def test_a_member_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidFormat, match="must be a JSON string"):
        parse_input(json.dumps({"input": value}).encode())


def test_what_was_refused_is_not_in_the_error() -> None:
    with pytest.raises(InvalidFormat) as refused:
        parse_input(b'{"input": @alice}')
    assert "alice" not in repr(refused.value)
    assert refused.value.__suppress_context__


@given(TEXTS, TEXTS, st.sampled_from([None, "https://bob.example/"]))
def test_an_answer_holds_the_user_and_is_compact(plan: str, nickname: str, url: str | None) -> None:
    """The profile has a URL of its own, or that of its site."""
    user = User(plan=plan, card_number="007", nickname=nickname, profile_url=url)
    body = encode_user(user, IDENTIFIERS)
    record = {
        "status": "ok",
        "plan": plan,
        "card_number": "007",
        "nickname": f"@{nickname}",
        "profile_url": url or f"https://profiles.example/m/{nickname}",
    }
    assert body == json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
