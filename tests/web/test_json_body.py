"""Media types of bodies and responses; the JSON of requests and of responses, for any text."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.model import User
from tornado_idv.web.errors import ApiError, ApiException
from tornado_idv.web.json_body import check_media_types, encode_user, parse_object, text_member

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


JSON: dict[str, tuple[str, ...]] = {
    "Content-Type": (
        *("", "  ", "application/json", 'Application/JSON; charset="UTF-8"'),
        *("application/vnd.example.v1+json", "application/json; charset=utf8"),
        "application/json; version=1",
    ),
    "Content-Encoding": ("", " ", "identity", "IDENTITY"),
    "Accept": (
        *("", " ", "*/*", "application/*", "text/html;q=0.9, APPLICATION/JSON"),
        *("text/html, application/json;q=0.1", "text/html, */*;q=0.1"),
        *("json", "no;;such=thing"),  # cannot be read
    ),
}
NOT_JSON: dict[str, tuple[str, ...]] = {
    "Content-Type": (
        *("text/json", "application/jsonx", "application/json-seq", "model/gltf+json"),
        *("application/json;charset=utf-16", "application/json, application/json"),
        *("json", "application/", "nonsense", "multipart/form-data; boundary=x"),
    ),
    "Content-Encoding": ("gzip", "identity, br", "identity, identity"),
    "Accept": (
        *("text/html", "text/*", "image/*", "application/json;q=0"),
        *("application/json;q=0, */*;q=0", "*/*, application/json;q=0"),
    ),
}


def refusal(fields: dict[str, str]) -> ApiError | None:
    """Return the error for a request with these header fields, ``None`` if it is read."""
    try:
        check_media_types(fields)
    except ApiException as refused:
        return refused.error
    return None


@pytest.mark.parametrize("name", JSON)
def test_json_in_utf_8_passes(name: str) -> None:
    assert refusal({}) is None
    assert [value for value in JSON[name] if refusal({name: value}) is not None] == []


@pytest.mark.parametrize("name", NOT_JSON)
def test_everything_else_is_refused(name: str) -> None:
    error = ApiError.NOT_ACCEPTABLE if name == "Accept" else ApiError.MEDIA_TYPE
    assert [value for value in NOT_JSON[name] if refusal({name: value}) is not error] == []


@pytest.mark.parametrize("value", ['a/b;c="' + ";" * 16_000, 'a/b;c="' + '\\";' * 5_000])
def test_long_headers_take_no_long_time(value: str) -> None:
    """The parser alone takes 0.3 s for the first of them."""
    before = time.process_time()
    assert refusal({"Accept": value}) is None
    assert refusal({"Content-Type": value}) is ApiError.MEDIA_TYPE
    assert time.process_time() - before < 0.05


def test_request_content_type_is_checked_before_accept() -> None:
    assert refusal({"Content-Type": "text/html", "Accept": "text/html"}) is ApiError.MEDIA_TYPE
