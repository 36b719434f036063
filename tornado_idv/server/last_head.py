"""The head that came last on a connection: mostly the next one is the same, byte by byte.

What begins with these bytes, and has as many more as they say, is one whole request: nothing is
to be searched or parsed, and its body is what comes behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tornado_idv.server.exchange import Exchange, Peer
from tornado_idv.server.head import HEAD_END, Head, is_short
from tornado_idv.web.packets import KnownHead, PacketCache


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


def recall(packet: bytes, peer: Peer, packets: PacketCache | None) -> LastHead:
    """What the packet cache knows of a request with another head than the last."""
    known = packets.head(packet) if packets is not None else None
    if known is None:
        return LastHead()
    remote = peer.caller(known.forwarded)
    return LastHead(packet[: -known.length], len(packet), None, known, remote)


def learn(last: LastHead, exchange: Exchange, packets: PacketCache | None) -> LastHead:
    """Remembers what a request was and meant whose bytes came by themselves.

    ``last`` is what was known of its head before; gives what is known of it now.
    """
    head, packet, meaning = exchange.head, exchange.packet, exchange.meaning
    if not last.size:
        last = _head_of(packet, head)
    elif last.head is None:
        last.head = head
    if packets is None or meaning is None:
        return last
    if last.known is not None:
        if meaning.remembered:
            packets.learn_body(packet, last.known, meaning.query)
        return last
    known = packets.learn(packet, head.start_line, head.headers, meaning)
    if last.size:
        last.known, last.remote = known, exchange.remote
    return last


def _head_of(packet: bytes, head: Head) -> LastHead:
    """The head of ``packet``, if that was one whole request that can come again as it is."""
    end = packet.find(HEAD_END) + len(HEAD_END)
    whole = head.length and end + head.length == len(packet)
    if whole and is_short(packet[:end], head) and not head.expects_continue:
        return LastHead(packet[:end], len(packet), head)
    return LastHead()
