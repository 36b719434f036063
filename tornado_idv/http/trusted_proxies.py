"""The client's address behind proxies: the trusted part of ``X-Forwarded-For``.

Any client can send this header, and each proxy appends the address of its client. So the header is
read from its end, up to the first entry that no trusted proxy has written.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

_ENTRY = re.compile(
    r"([0-9.]+)(?::[0-9]{1,5})?|\[([0-9a-f]*:[0-9a-f:.]+)\](?::[0-9]{1,5})?|([0-9a-f:.]+)",
    re.ASCII | re.IGNORECASE,
)
"""An entry: IPv4 or bracketed IPv6, both with an optional port, or plain IPv6. No zones."""

UNIX = "unix:"
"""In place of an address, for all clients of Unix sockets. nginx uses the same text."""
_MAX_ENTRY = 64
"""Maximum characters of an entry. An address with its port is shorter."""
_MAX_ENTRIES = 100
"""Maximum number of entries to read. No chain of proxies is longer."""
_MEMO_SIZE = 4096


class _Hop(NamedTuple):
    address: str
    trusted: bool


class TrustedProxies:
    """The set of trusted proxies. Their ``X-Forwarded-For`` entries are trusted.

    ``networks`` are addresses, or networks like ``10.0.0.0/8``. An IPv4-mapped IPv6 address counts
    as the IPv4 address. `UNIX` trusts all clients of Unix sockets. In a header, `UNIX` is invalid,
    because it would mean a socket of another machine.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._unix = _Hop(UNIX, UNIX in (networks := tuple(networks)))
        self._networks = tuple(ip_network(each) for each in networks if each != UNIX)
        self._hop = lru_cache(_MEMO_SIZE)(self._read_hop)

    def client_address(self, peer: str, forwarded_for: str) -> str:
        """Return the address of the client behind ``peer``, the remote end of the connection.

        ``forwarded_for`` is the value of ``X-Forwarded-For``, with several lines joined by commas.
        The client is the hop nearest to the service that is not a trusted proxy. If an entry is
        invalid, the proxy that wrote it counts as the client.
        """
        hop = self._unix if peer == UNIX else self._hop(peer) or _Hop(peer, trusted=False)
        entries = forwarded_for.rsplit(",", _MAX_ENTRIES)[-_MAX_ENTRIES:]
        while hop.trusted and entries:
            previous = self._hop(entries.pop().strip(" \t")[:_MAX_ENTRY])
            if previous is None:
                break
            hop = previous
        return hop.address

    def _read_hop(self, entry: str) -> _Hop | None:
        match = _ENTRY.fullmatch(entry)
        address = _parse_address(match[match.lastindex or 0]) if match else None
        if address is None:
            return None
        return _Hop(str(address), any(address in network for network in self._networks))


def normalize_address(text: str) -> str:
    """Return the canonical form of a socket's remote address, for the log.

    An IPv4-mapped IPv6 address becomes IPv4, and a zone is removed. Without an address, such as
    after the client has disconnected, the result is empty.
    """
    return str(_parse_address(text.partition("%")[0]) or "")


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
