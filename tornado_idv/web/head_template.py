"""Head templates: what is fixed in the request heads of a client, and what varies.

A client's software fixes the order and the spelling of header fields, their values vary: ids of
requests and traces, addresses, tokens. A template is learned from a head that the handlers have
accepted, and matches all heads for which they would do the same.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from tornado_idv.http.head import RequestHead
from tornado_idv.trace_context import TRACEPARENT
from tornado_idv.web.response import REQUEST_ID

SIGNIFICANT = ("host", "content-type", "content-encoding", "accept", "connection")
"""Header fields whose value the response may depend on: it is a part of the template."""
CARRIED = (
    "authorization",
    "content-length",
    "x-request-id",
    "x-idv-request-id",
    "x-forwarded-for",
    "traceparent",
    "tracestate",
)
"""Header fields whose value is read for each request. All other fields are inert: any valid value
is the same."""
_NEVER = ("expect", "te", "trailer", "transfer-encoding", "upgrade", "proxy-connection")
"""Header fields of requests that are left to the handlers."""

MAX_HEAD = 16 * 1024
_MAX_FIELDS = 40
_MAX_LITERAL = 400
"""Bytes of a head that are compared; each takes eight in a compiled template (CPython 3.11). That
of a client with ten header fields takes less than 4 KiB."""
_MAX_TEMPLATES = 1000
_MAX_OF_KEY = 16
"""Templates learned with one key: a client with ever new heads replaces only its own."""
_REPLACE_INTERVAL = 60.0
"""Seconds until a key that has so many replaces one: to compile a template takes up to a
millisecond."""
_SEEN_OF_KEY = 8
"""Heads of a key that are remembered until they come a second time, and are learned."""

_HEAD_END = b"\r\n\r\n"
_VALUE = rb"[\t -~\x80-\xff]*+"
_VALID = rb"[ \t]*+(?:%b[ \t]*+|" + _VALUE + rb")"
"""A value whose groups are ``None`` where it is not valid."""
_ID = _VALID % b"(%b+)" % REQUEST_ID.encode()
_PATTERNS = {
    # A token68, as `is_token68`; its length is for the caller to check.
    "authorization": rb" *+(?i:bearer) ++([A-Za-z0-9\-._~+/]++=*+)",
    "content-length": rb" *+(0|[1-9][0-9]{0,5}+)",
    **dict.fromkeys(("x-request-id", "x-idv-request-id"), _ID),
    "x-forwarded-for": rb"(" + _VALUE + rb")",
    "traceparent": _VALID % TRACEPARENT.encode(),
    "tracestate": rb"(" + _VALUE + rb")",
}
_LINE = re.compile(rb"([^:\r\n]+):[^\r\n]*+\r\n")
_SHAPE = re.compile(rb"\n(?:((?i:" + "|".join(SIGNIFICANT).encode() + rb"):.*+)|([^:\n]*+):.*+)")


_Meaning = TypeVar("_Meaning")


class HeadTemplate(Struct, Generic[_Meaning], frozen=True, eq=False):
    """A compiled template: ``start``, and the pattern of what follows.

    The groups of its pattern are numbered, 0 for an absent field;
    ``traceparent`` is the first of two, which are ``None`` unless it is valid, as are
    ``request_id`` and ``echoed``, the client's ``X-IDV-Request-ID``. ``meaning`` is
    what the handlers understood, opaque here.
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
        """Match the head that ``data`` begins with."""
        start = self.start
        return self.pattern.match(data, len(start), MAX_HEAD) if data.startswith(start) else None


def shape_of(data: bytes | bytearray) -> int | None:
    """Return a hash of the fixed parts of the head that ``data`` begins with.

    ``None`` for a head that is not complete, or has too many fields for a template.
    """
    end = data.find(_HEAD_END, 0, MAX_HEAD)
    lines = data.count(b"\n", 0, end)
    if end < 0 or lines > _MAX_FIELDS or data.count(b"\r\n", 0, end) < lines:
        return None
    line = bytes(data[: data.find(b"\r\n")])
    return hash((line, *_SHAPE.findall(data, len(line), end)))


def compile_template(head: RequestHead, meaning: _Meaning) -> HeadTemplate[_Meaning] | None:
    """Return the template of a head that was accepted, ``None`` if it can have none."""
    at = start = head.data.find(b"\r\n") + 2
    is_absolute = b"://" in head.data[: head.data.find(b"/") + 2]
    if is_absolute or any(name in head.headers for name in _NEVER):
        return None
    parts, literal = [], at
    groups, count = dict.fromkeys(CARRIED, 0), 1
    names = set()
    for line in _LINE.finditer(head.data, at):
        name = line[1].decode().lower()
        if name in names and name in (*SIGNIFICANT, *CARRIED):
            return None
        names.add(name)
        prefix, value = line[1] + b":", _PATTERNS.get(name, _VALUE)
        if name in SIGNIFICANT:
            prefix, value = line[0][:-2], b""
        elif name in groups:
            groups[name] = count
            count += value.count(b"(") - value.count(b"(?")
        literal += len(prefix)
        if name in SIGNIFICANT and line.start() == start:
            start = line.end()
        else:
            parts += [re.escape(prefix), value, rb"\r\n"]
    if not (groups["authorization"] and groups["content-length"]) or literal > _MAX_LITERAL:
        return None
    template = HeadTemplate(
        start=head.data[:start],
        pattern=re.compile(b"".join([*parts, rb"\r\n"])),
        token=groups["authorization"],
        length=groups["content-length"],
        request_id=groups["x-request-id"],
        echoed=groups["x-idv-request-id"],
        forwarded_for=groups["x-forwarded-for"],
        traceparent=groups["traceparent"],
        tracestate=groups["tracestate"],
        keep_alive=head.keep_alive,
        connection_field=head.connection_field(keep_alive=head.keep_alive),
        meaning=meaning,
    )
    return template if template.match(head.data) else None


class HeadTemplates(Generic[_Meaning]):
    """The templates of all clients, by the shape of their heads; ``timer`` gives seconds."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._by_shape: OrderedDict[int, tuple[HeadTemplate[_Meaning] | None, str]] = OrderedDict()
        """With the key id it was learned with; ``None`` for a head that can have no template.

        That may be due to its values, so another key may have one.
        """
        self._seen: OrderedDict[str, deque[int]] = OrderedDict()
        self._replaced_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._by_shape)

    def find(self, data: bytes | bytearray) -> HeadTemplate[_Meaning] | None:
        """Return the template that the head in ``data`` may match."""
        shape = shape_of(data) if self._by_shape else None
        known = self._by_shape.get(shape) if shape is not None else None
        return known[0] if known is not None else None

    def learn(self, head: RequestHead, key_id: str, meaning: _Meaning) -> None:
        """Learn from a head that was accepted, once it has come a second time."""
        shape = shape_of(head.data)
        refused = hash((shape, key_id))
        if shape is None or shape in self._by_shape or refused in self._by_shape:
            return
        seen = self._seen.get(key_id)
        if seen is None:
            seen = self._seen[key_id] = deque(maxlen=_SEEN_OF_KEY)
            if len(self._seen) > _MAX_TEMPLATES:
                self._seen.popitem(last=False)
        if shape not in seen:
            seen.append(shape)
        elif self._has_room(key_id):
            seen.remove(shape)
            template = compile_template(head, meaning)
            self._by_shape[shape if template else refused] = template, key_id

    def _has_room(self, key_id: str) -> bool:
        """Make room for one more template, if this key may have one."""
        own = [each for each, (_, owner) in self._by_shape.items() if owner == key_id]
        if len(own) >= _MAX_OF_KEY:
            now = self._timer()
            if now < self._replaced_at.get(key_id, -math.inf) + _REPLACE_INTERVAL:
                return False
            self._replaced_at[key_id] = now
            del self._by_shape[own[0]]
        elif len(self._by_shape) >= _MAX_TEMPLATES:
            self._by_shape.popitem(last=False)
        return True
