"""Media types of bodies and responses."""

import time

import pytest

from tornado_idv.web.errors import ApiError, ApiException
from tornado_idv.web.json_body import check_media_types

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
