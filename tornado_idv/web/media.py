"""Which media types are read and answered: JSON in UTF-8, and nothing else."""

from __future__ import annotations

import mimeparse
from tornado.httputil import HTTPHeaders

from tornado_idv.web.refusals import Refusal, Refused

JSON = "application/json"
# Characters of a header that are parsed. mimeparse takes quadratic time for quoted parameters,
# 0.3 s for a header of 16 KiB.
_MAX_LENGTH = 1024


def check_media(headers: HTTPHeaders) -> None:
    """Raises `Refused` if the body is said to be no JSON, or JSON would not be taken.

    An absent or empty header means JSON; so does an ``Accept`` that cannot be read. A header
    of more than 1,024 characters cannot be read.
    """
    content_type = headers.get("Content-Type", "").strip()
    if content_type and content_type != JSON and not _is_json(content_type):
        raise Refused(Refusal.MEDIA_TYPE)
    if headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
        raise Refused(Refusal.MEDIA_TYPE)
    accept = headers.get("Accept", "").strip()
    if accept not in ("", "*/*", JSON) and _shuts_json_out(accept):
        raise Refused(Refusal.NOT_ACCEPTABLE)


def _is_json(content_type: str) -> bool:
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


def _shuts_json_out(accept: str) -> bool:
    if len(accept) > _MAX_LENGTH:
        return False
    try:
        return not mimeparse.best_match([JSON], accept.lower())
    except mimeparse.MimeTypeParseException:
        return False
