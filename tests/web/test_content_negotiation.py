"""Media types that no request of the contract's table has."""

from __future__ import annotations

import time

import pytest

from tornado_idv.web.content_negotiation import check_media_types
from tornado_idv.web.errors import ApiError, ApiException

READ = {
    "nothing said": {},
    "blanks": {"Content-Type": "  ", "Accept": " ", "Content-Encoding": " "},
    "a vendor's JSON": {"Content-Type": "application/vnd.example.v1+json"},
    "the charset without a dash": {"Content-Type": "application/json; charset=utf8"},
    "a parameter of no concern": {"Content-Type": "application/json; version=1"},
    "JSON among others": {"Accept": "text/html;q=0.9, APPLICATION/JSON"},
    "what cannot be read": {"Accept": "json"},
}
REFUSED = {
    "a type cut short": ({"Content-Type": "application/"}, ApiError.MEDIA_TYPE),
    "a type of its own": ({"Content-Type": "json"}, ApiError.MEDIA_TYPE),
    "JSON of another branch": ({"Content-Type": "model/gltf+json"}, ApiError.MEDIA_TYPE),
    "JSON in a name": ({"Content-Type": "application/json-seq"}, ApiError.MEDIA_TYPE),
    "another charset": ({"Content-Type": "application/json;charset=utf-16"}, ApiError.MEDIA_TYPE),
    "two codings": ({"Content-Encoding": "identity, identity"}, ApiError.MEDIA_TYPE),
    "JSON ruled out": ({"Accept": "application/json;q=0, */*;q=0"}, ApiError.NOT_ACCEPTABLE),
    "an image": ({"Accept": "image/*"}, ApiError.NOT_ACCEPTABLE),
}


def refusal(fields: dict[str, str]) -> ApiError | None:
    """Return the error for a request with these header fields, ``None`` if it is read."""
    try:
        check_media_types(fields)
    except ApiException as refused:
        return refused.error
    return None


@pytest.mark.parametrize("fields", READ.values(), ids=READ)
def test_json_in_utf_8_passes(fields: dict[str, str]) -> None:
    assert refusal(fields) is None


@pytest.mark.parametrize(("fields", "error"), REFUSED.values(), ids=REFUSED)
def test_everything_else_is_refused(fields: dict[str, str], error: ApiError) -> None:
    assert refusal(fields) is error


@pytest.mark.parametrize("value", ['a/b;c="' + ";" * 16_000, 'a/b;c="' + '\\";' * 5_000])
def test_long_headers_take_no_long_time(value: str) -> None:
    """The parser alone takes 0.3 s for the first of them."""
    before = time.process_time()
    assert refusal({"Accept": value}) is None
    assert refusal({"Content-Type": value}) is ApiError.MEDIA_TYPE
    assert time.process_time() - before < 0.05


def test_request_content_type_is_checked_before_accept() -> None:
    assert refusal({"Content-Type": "text/html", "Accept": "text/html"}) is ApiError.MEDIA_TYPE
