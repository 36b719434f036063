"""Bodies of requests and responses: media types, parsing and encoding. All are JSON in UTF-8."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

import mimeparse

from tornado_idv import strict_json
from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers
from tornado_idv.model import User
from tornado_idv.web.errors import ApiError, ApiException

_JSON = "application/json"
_MAX_LENGTH = 1024
"""Maximum length of a header to parse. For quoted parameters, mimeparse takes quadratic time: 0.3 s
for a header of 16 KiB."""
_quoted = encode_basestring  # as `json.dumps` with ensure_ascii=False


def check_media_types(headers: Mapping[str, str]) -> None:
    """Raise `ApiException` unless the body is declared as JSON, and the client accepts JSON.

    An absent or empty header means JSON. An invalid ``Content-Type`` is rejected; an invalid
    ``Accept`` means JSON. A header of more than 1,024 characters counts as invalid.
    """
    content_type = headers.get("Content-Type")
    if content_type not in (None, _JSON) and not _is_json(content_type.strip()):
        raise ApiException(ApiError.MEDIA_TYPE, reason="content_type")
    coding = headers.get("Content-Encoding")
    if coding is not None and coding.strip().lower() not in ("identity", ""):
        raise ApiException(ApiError.MEDIA_TYPE, reason="content_encoding")
    check_accept(headers)


def check_accept(headers: Mapping[str, str]) -> None:
    """Raise `ApiException` if the ``Accept`` header excludes JSON."""
    accept = headers.get("Accept")
    if accept not in (None, "*/*", _JSON) and _excludes_json(accept.strip()):
        raise ApiException(ApiError.NOT_ACCEPTABLE)


def _is_json(content_type: str) -> bool:
    if not content_type:
        return True
    if len(content_type) > _MAX_LENGTH:
        return False
    try:
        kind, subtype, parameters = mimeparse.parse_mime_type(content_type)
    except mimeparse.MimeTypeParseException:
        return False
    charset = parameters.get("charset", "utf-8").lower()
    subtype = subtype.lower()
    is_json = subtype == "json" or subtype.endswith("+json")
    return kind.lower() == "application" and is_json and charset in ("utf-8", "utf8")


def _excludes_json(accept: str) -> bool:
    if not accept or len(accept) > _MAX_LENGTH:
        return False
    try:
        return not mimeparse.best_match([_JSON], accept.lower())
    except mimeparse.MimeTypeParseException:
        return False


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
