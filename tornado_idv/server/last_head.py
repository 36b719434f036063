"""The head that came last on a connection: mostly the next one is the same, byte by byte.

What begins with these bytes, and has as many more as they say, is one whole request: nothing is
to be searched or parsed, and its body is what comes behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado_idv.server.head import HEAD_END, Head, is_short
from tornado_idv.web.packets import KnownHead


@dataclass(slots=True, repr=False)
class LastHead:
    """``data`` is the head and ``size`` the whole request, in bytes; 0 is for "there is none".

    ``head`` is what was read of it, ``known`` what the packet cache knows of it: it can be
    known before it is read here, and never be known. ``remote`` is who sends it. There is no repr,
    as a key stands in it.
    """

    data: bytes = b""
    size: int = 0
    head: Head | None = None
    known: KnownHead | None = None
    remote: str = ""


def head_of(packet: bytes, head: Head) -> LastHead:
    """The head of ``packet``, if that was one whole request that can come again as it is."""
    end = packet.find(HEAD_END) + len(HEAD_END)
    whole = head.length and end + head.length == len(packet)
    if whole and is_short(packet[:end], head) and not head.expects_continue:
        return LastHead(packet[:end], len(packet), head)
    return LastHead()
