"""Head templates: the fixed and the variable parts of a client's request heads.

A client's software fixes the order and the spelling of header fields. Their values vary: ids of
requests and traces, addresses, tokens. A template is learned from a head accepted by the handlers.
It matches only heads that the handlers would treat in the same way.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from tornado_idv.http.head import RequestHead
from tornado_idv.limits import Limit
from tornado_idv.trace_context import TRACEPARENT
from tornado_idv.units import Rate
from tornado_idv.web.response import REQUEST_ID

SIGNIFICANT = ("content-type", "content-encoding", "accept", "connection")
"""Header fields that may affect the response. A template contains their values."""
_CARRIED = {
    "authorization": "token",
    "content-length": "length",
    "x-request-id": "request_id",
    "x-idv-request-id": "echoed",
    "x-forwarded-for": "forwarded_for",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
}
"""Header fields whose value is read from each request, and their attributes of `HeadTemplate`. A
field that is neither here nor `SIGNIFICANT` has no effect: a template matches any valid value."""
_NEVER = ("expect", "te", "trailer", "upgrade", "x-idv-past-cache")
"""Requests with one of these header fields are left to the handlers."""

MAX_HEAD = 16 * 1024
_MAX_FIELDS = 40
_MAX_LITERAL = 400
"""The maximum number of fixed bytes in a template. Each takes eight bytes in the compiled pattern
(CPython 3.11). A template with ten header fields takes less than 4 KiB."""
_MAX_TEMPLATES = 1000
_COMPILING = Limit("templates", Rate(32, 4.0))
"""The rate of compilations for one key: 32 in a burst, then 8 per second. A compilation takes up to
one millisecond."""
_MAX_SEEN = 10_000
"""The maximum number of shapes to count (see `shape_of`). Shapes with a template do not count."""

_HEAD_END = b"\r\n\r\n"
_VALUE = rb"[\t -~\x80-\xff]*+"
_VALID = rb"[ \t]*+(?:%b[ \t]*+|" + _VALUE + rb")"
"""Matches any value. If the pattern in place of ``%b`` does not match, its groups are ``None``."""
_ID = _VALID % b"(%b+)" % REQUEST_ID.encode()
_ANY = re.compile(_VALUE)
_PATTERNS = {
    "host": re.compile(rb" *+[A-Za-z0-9._:\[\]-]{1,255}+"),
    # A token68, as `is_token68`; its length is for the caller to check.
    "authorization": re.compile(rb" *+(?i:bearer) ++([A-Za-z0-9\-._~+/]++=*+)"),
    "content-length": re.compile(rb" *+(0|[1-9][0-9]{0,5}+)"),
    **dict.fromkeys(("x-request-id", "x-idv-request-id"), re.compile(_ID)),
    **dict.fromkeys(("x-forwarded-for", "tracestate"), re.compile(rb"(" + _VALUE + rb")")),
    "traceparent": re.compile(_VALID % TRACEPARENT.encode()),
}
_NAMED = "".join(rf"(?<!\n{name}:)" for name in SIGNIFICANT)
_DROPPED = re.compile(rb":(?i:%b).*" % _NAMED.encode())
"""Matches the colon and the value of a field that is not `SIGNIFICANT`."""
_Meaning = TypeVar("_Meaning")


class HeadTemplate(Struct, Generic[_Meaning], frozen=True, eq=False):
    """A compiled template. ``start`` is the request line, ``pattern`` matches the header fields.

    Each attribute from ``token`` to ``tracestate`` is the number of the group that matches a value
    of a header field. Without the field, it is 0. ``echoed`` is the group of ``X-IDV-Request-ID``.
    ``traceparent`` is the first of two groups (trace id, flags). A group is ``None`` if its id or
    ``traceparent`` is invalid. ``meaning`` is an object of the caller.
    """

    start: bytes
    pattern: re.Pattern[bytes]
    token: int
    length: int
    request_id: int
    echoed: int
    forwarded_for: int
    traceparent: int
    tracestate: int
    keep_alive: bool
    connection_field: str
    meaning: _Meaning

    def match(self, data: bytes | bytearray) -> re.Match[bytes] | None:
        """Match the head at the start of ``data``."""
        start = self.start
        return self.pattern.match(data, len(start), MAX_HEAD) if data.startswith(start) else None


def shape_of(data: bytes | bytearray) -> int | None:
    """Return a hash of the fixed parts of the head, or ``None`` for an incomplete head."""
    end = data.find(_HEAD_END, 0, MAX_HEAD)
    return None if end < 0 else hash(b"".join(_DROPPED.split(data[:end], _MAX_FIELDS)))


def compile_template(head: RequestHead, meaning: _Meaning) -> HeadTemplate[_Meaning] | None:
    """Return the template of an accepted head, or ``None`` if only the handlers may serve it."""
    start = head.data.find(b"\r\n") + 2
    fields = head.data[start : -len(_HEAD_END)].split(b"\r\n")
    is_absolute = b"://" in head.data[: head.data.find(b"/") + 2]
    if is_absolute or len(fields) > _MAX_FIELDS or any(name in head.headers for name in _NEVER):
        return None
    parts, literal = [], 0
    groups, count = dict.fromkeys(_CARRIED.values(), 0), 1
    names = set()
    for line in fields:
        field, colon, sent = line.partition(b":")
        name = field.decode().lower()
        value = _PATTERNS.get(name, _ANY)
        is_repeated = name in names and name in (*SIGNIFICANT, *_CARRIED)
        if is_repeated or not value.fullmatch(sent):
            return None
        names.add(name)
        fixed = line if name in SIGNIFICANT else field + colon
        if name in _CARRIED:
            groups[_CARRIED[name]] = count
            count += value.groups
        literal += len(fixed)
        parts += [re.escape(fixed), b"" if fixed is line else value.pattern, rb"\r\n"]
    if not (groups["token"] and groups["length"]) or literal > _MAX_LITERAL:
        return None
    return HeadTemplate(
        start=head.data[:start],
        pattern=re.compile(b"".join([*parts, rb"\r\n"])),
        **groups,
        keep_alive=head.keep_alive,
        connection_field=head.connection_field(keep_alive=head.keep_alive),
        meaning=meaning,
    )


class HeadTemplates(Generic[_Meaning]):
    """The templates of all clients, by the shape of their heads. ``timer`` returns seconds."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._by_shape: OrderedDict[int | None, HeadTemplate[_Meaning]] = OrderedDict()
        """Templates by shape, the least recently found first."""
        self._seen: OrderedDict[int, int] = OrderedDict()
        """For each shape without a template: the number of accepted heads. Latest shape last."""
        self._tats: dict[str, float] = {}
        """State of the rate limit: the theoretical arrival time of compilations, by key id."""

    def find(self, data: bytes | bytearray) -> HeadTemplate[_Meaning] | None:
        """Return the template with the shape of the head in ``data``, or ``None``."""
        shape = shape_of(data)
        template = self._by_shape.get(shape)
        if template is not None:
            self._by_shape.move_to_end(shape)
        return template

    def learn(self, head: RequestHead, key_id: str, meaning: _Meaning) -> None:
        """Count an accepted head. The second head of a shape is compiled to a template."""
        shape = shape_of(head.data)
        if shape is None or shape in self._by_shape:
            return
        self._seen[shape] = count = self._seen.pop(shape, 0) + 1
        if count == 1:
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return
        now = self._timer()
        tat = max(self._tats.get(key_id, now), now)
        template = None if _COMPILING.exceeded(tat, now) else compile_template(head, meaning)
        if template is not None:
            del self._seen[shape]
            self._by_shape[shape] = template
            if len(self._by_shape) > _MAX_TEMPLATES:
                self._by_shape.popitem(last=False)
            self._tats[key_id] = tat + _COMPILING.interval
