"""The context of a request: its id, and its trace as defined by W3C Trace Context.

https://www.w3.org/TR/trace-context/
"""

import re
import secrets
from contextvars import ContextVar

from msgspec import Struct

TRACEPARENT = "(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
"""Pattern of a valid ``traceparent``. Its groups are the trace id and the flags."""
_TRACEPARENT = re.compile(TRACEPARENT)
_TRACESTATE = re.compile("[ -~]{1,512}")
_KNOWN_FLAGS = 0x03
"""The flags *sampled* and *random trace id*. All other flags must be sent as zero."""


class Trace(Struct, frozen=True, gc=False):
    """The trace context of a request: the trace id and the flags of its ``traceparent``.

    ``state`` is its ``tracestate``, or empty without a valid value.
    """

    id: str
    flags: str
    state: str

    def child(self) -> str:
        """Return the ``traceparent`` of an outgoing request in this trace, with a new span id."""
        span_id = secrets.randbits(64) or 1  # zero is invalid
        return f"00-{self.id}-{span_id:016x}-{int(self.flags, 16) & _KNOWN_FLAGS:02x}"


class RequestContext(Struct, frozen=True, gc=False):
    """The id and the trace of a request. ``trace`` is ``None`` without a valid ``traceparent``."""

    request_id: str
    trace: Trace | None


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request that started the current lookup, or ``None`` for a refresh and for commands.

The answer must not depend on this request, because other requests may wait for the same lookup, and
the answer is cached for all.
"""


def parse_trace(traceparent: str, tracestate: str = "") -> Trace | None:
    """Return the trace of a request, or ``None`` if its ``traceparent`` is invalid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return Trace(match[1], match[2], valid_state(tracestate)) if match else None


def valid_state(tracestate: str) -> str:
    """Return a valid ``tracestate`` unchanged, and an empty text for any other value."""
    return tracestate if _TRACESTATE.fullmatch(tracestate) else ""
