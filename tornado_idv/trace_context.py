"""The request that a lookup runs for: its id, and its trace as in W3C Trace Context.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from msgspec import Struct

TRACEPARENT = "(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
"""Pattern of a valid ``traceparent``, with groups for the id of the trace and the flags."""
_TRACEPARENT = re.compile(TRACEPARENT)
_TRACESTATE = re.compile("[ -~]{1,512}")
_KNOWN_FLAGS = 0x03
"""The flags sampled and random trace id; others must be sent as zero."""


class Trace(Struct, frozen=True, gc=False):
    """The trace of a caller's request: fields of its ``traceparent``.

    ``state`` is its ``tracestate``; empty if it had no valid one.
    """

    id: str
    flags: str
    state: str

    def child(self) -> str:
        """Return the ``traceparent`` of an outgoing request in this trace, with a new span id."""
        span_id = secrets.randbits(64) or 1  # zero is invalid
        return f"00-{self.id}-{span_id:016x}-{int(self.flags, 16) & _KNOWN_FLAGS:02x}"


class RequestContext(Struct, frozen=True, gc=False):
    """The request that a lookup runs for; ``trace`` is ``None`` if it had no valid one."""

    request_id: str
    trace: Trace | None


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request that started the running lookup; ``None`` for a refresh and for commands.

Others may wait for the same lookup, and its answer is cached for all: it must not depend on this.
"""


def parse_trace(traceparent: str, tracestate: str = "") -> Trace | None:
    """Return the trace of a caller; ``None`` unless its ``traceparent`` is valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return Trace(match[1], match[2], valid_state(tracestate)) if match else None


def valid_state(tracestate: str) -> str:
    """Return a ``tracestate`` if it is valid, else an empty text."""
    return tracestate if _TRACESTATE.fullmatch(tracestate) else ""
