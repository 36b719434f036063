"""Checks of the media types of requests and responses. Only JSON in UTF-8 is supported."""

from collections.abc import Mapping

import mimeparse

from tornado_idv.web.errors import ApiError, ApiException

_JSON = "application/json"
_MAX_LENGTH = 1024
"""Maximum length of a header to parse. For quoted parameters, mimeparse takes quadratic time: 0.3 s
for a header of 16 KiB."""


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
