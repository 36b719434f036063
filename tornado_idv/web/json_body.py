"""Parsing of JSON request bodies, and encoding of response bodies."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from json.encoder import encode_basestring
from typing import Any

from tornado_idv import strict_json
from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers
from tornado_idv.model import User
from tornado_idv.web.errors import ApiError

_quoted = encode_basestring  # as `json.dumps` with ensure_ascii=False


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in ``body``.

    The body must be valid UTF-8 and JSON (RFC 8259), without duplicate members, NaN, or a byte
    order mark. Numbers are returned as text, because Python cannot convert an integer of 5,000
    digits, and unknown members may contain one. Raises `InvalidFormat`.
    """
    try:
        record = strict_json.loads(body, keep_numbers=True)
    except ValueError:
        has_mark = body.startswith((BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE))
        raise InvalidFormat("byte_order_mark" if has_mark else "not_json") from None
    if not isinstance(record, dict):
        raise InvalidFormat("not_an_object")
    return record


def text_member(record: dict[str, Any], name: str) -> str:
    """Return the text member ``name``. Raises `InvalidFormat`."""
    value = record.get(name)
    if type(value) is not str:  # not `isinstance`: a `Number` is a subclass of str
        raise InvalidFormat("member_not_a_string" if name in record else "member_missing")
    return value


def encode_user(user: User | None, identifiers: Identifiers) -> bytes:
    """Return the response body for a user. For ``None``, return the body of "not found"."""
    if user is None:
        return ApiError.NOT_FOUND.body
    return (
        f'{{"status":"ok","plan":{_quoted(user.plan)},"card_number":{_quoted(user.card_number)}'
        f',"nickname":{_quoted(f"@{user.nickname}")}'
        f',"profile_url":{_quoted(identifiers.profile_url(user))}}}'
    ).encode()
