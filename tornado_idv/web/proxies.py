"""Who asks, where proxies stand between: ``X-Forwarded-For``, as far as it can be believed.

Any caller can write this header. Each proxy adds at its end whom it got the request from,
so it is read from there, and only as far as those who wrote it are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

_ENTRY = re.compile(
    r"([0-9.]+)(?::[0-9]{1,5})?|\[([0-9a-f]*:[0-9a-f:.]+)\](?::[0-9]{1,5})?|([0-9a-f:.]+)",
    re.ASCII | re.IGNORECASE,
)
"""IPv4 with or without a port, IPv6 in brackets the same, IPv6 bare; never with a zone."""

_LONGEST = 64
"""More characters than an address with its port has."""
_MOST_READ = 100
"""How many entries are read at most: whoever sends more is no proxy that anyone set up."""
_MOST_REMEMBERED = 4096


class _Hop(NamedTuple):
    address: str
    trusted: bool


class TrustedProxies:
    """The proxies that are believed.

    ``networks`` are addresses, or networks by their first address and the length of their
    prefix, like ``10.0.0.0/8``; of IPv4 within IPv6 it is the IPv4 address that counts.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(each) for each in networks)
        self._hop = lru_cache(_MOST_REMEMBERED)(self._read_hop)

    def caller(self, peer: str, forwarded: str) -> str:
        """The address of the caller behind ``peer``, which is the connection's other end.

        ``forwarded`` is the value of ``X-Forwarded-For``, that of several lines joined with
        commas. The caller is the last who is no trusted proxy; where an entry is no address,
        nobody before it is known, so whoever told of it counts.
        """
        hop = self._hop(peer) or _Hop(peer, trusted=False)
        entries = forwarded.rsplit(",", _MOST_READ)[-_MOST_READ:]
        while hop.trusted and entries:
            before = self._hop(entries.pop().strip(" \t")[:_LONGEST])
            if before is None:
                break
            hop = before
        return hop.address

    def _read_hop(self, entry: str) -> _Hop | None:
        match = _ENTRY.fullmatch(entry)
        address = _address(match[match.lastindex or 0]) if match else None
        if address is None:
            return None
        return _Hop(str(address), any(address in network for network in self._networks))


def peer_address(told: str) -> str:
    """The address of a connection's other end as it is logged, ``told`` by the system.

    IPv4 within IPv6 is IPv4, and a zone is left out. It is empty for whoever has no address,
    or has left already.
    """
    return str(_address(told.partition("%")[0]) or "")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
