"""A response that was saved to a file, read as if it had just been received."""

from __future__ import annotations

import re
from pathlib import Path

from multidict import CIMultiDict

from idv_upstream.response.raw import MAX_BODY, Response
from tornado_idv import StartError

_STATUS = re.compile(rb"HTTP/[0-9.]+ ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


def read_saved_response(path: Path) -> Response:
    """Return the response in a file: a body alone, or the output of ``curl -i``.

    A body alone is taken for JSON with status 200. Raises `StartError` for a file that
    cannot be read or is too long.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > 2 * MAX_BODY:
        raise StartError(f"{path}: longer than any response that is read ({MAX_BODY} bytes)")
    status = _STATUS.match(content)
    if status is None:
        return Response(200, CIMultiDict({"Content-Type": "application/json"}), content)
    head, body = content[status.end() :], b""
    end = _END_OF_HEAD.search(content)
    if end is not None:
        head, body = content[status.end() : end.start()], content[end.end() :]
    return Response(int(status[1]), _headers(head), body)


def _headers(head: bytes) -> CIMultiDict[str]:
    lines = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return CIMultiDict((name.strip(), value.strip()) for name, colon, value in lines if colon)
