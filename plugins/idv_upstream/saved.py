"""An answer that was saved in a file, to be read as if it had just come."""

from __future__ import annotations

import re
from pathlib import Path

from multidict import CIMultiDict

from idv_upstream.bodies import MAX_ANSWER
from idv_upstream.client import Reply
from tornado_idv import StartError

_STATUS = re.compile(rb"HTTP/[0-9.]+ ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_END = re.compile(rb"\r?\n\r?\n")


def saved_reply(path: Path) -> Reply:
    """The answer in a file: a body alone, or what ``curl -i`` prints, head and all.

    A body alone is taken for JSON with status 200. Raises `StartError` for a file that cannot
    be read or is too long.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > 2 * MAX_ANSWER:
        raise StartError(f"{path}: longer than any answer that is read ({MAX_ANSWER} bytes)")
    status = _STATUS.match(content)
    if status is None:
        return Reply(200, CIMultiDict({"Content-Type": "application/json"}), content)
    head, body = content[status.end() :], b""
    end = _END.search(content)
    if end is not None:
        head, body = content[status.end() : end.start()], content[end.end() :]
    return Reply(int(status[1]), _fields(head), body)


def _fields(head: bytes) -> CIMultiDict[str]:
    lines = (line.partition(":") for line in head.decode("latin-1").splitlines())
    return CIMultiDict((name.strip(), value.strip()) for name, colon, value in lines if colon)
