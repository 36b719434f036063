"""Who is behind trusted proxies, by what each of them adds to X-Forwarded-For."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.http import trusted_proxies as proxies_module
from tornado_idv.http.trusted_proxies import TrustedProxies, normalize_address

TRUSTED = ("10.0.0.0/8", "192.0.2.1", "fd00::/8", "2001:db8::1", "unix:")
PEER = "10.0.0.1"

CASES = {
    "no header": (PEER, "", PEER),
    "one proxy": (PEER, "203.0.113.5", "203.0.113.5"),
    "three proxies, one by its only address": (
        PEER,
        "203.0.113.5, 192.0.2.1, 10.0.0.2",
        "203.0.113.5",
    ),
    "an address next to a proxy's": (PEER, "203.0.113.5, 192.0.2.2", "192.0.2.2"),
    "a caller who writes the header": ("203.0.113.9", "203.0.113.5", "203.0.113.9"),
    "a caller who writes the header to a proxy": (PEER, "198.51.100.1, 203.0.113.5", "203.0.113.5"),
    "a caller within the trusted networks": (PEER, "10.0.0.3, 10.0.0.2", "10.0.0.3"),
    "IPv6": ("fd00::1", "2001:db8::5, fd00::2", "2001:db8::5"),
    "IPv4 behind IPv6": ("2001:db8::1", "203.0.113.5, 2001:db8:0::1", "203.0.113.5"),
    "a proxy as IPv4 within IPv6": ("::ffff:10.0.0.1", "203.0.113.5", "203.0.113.5"),
    "entries as IPv4 within IPv6": (PEER, "::ffff:203.0.113.5, ::FFFF:a00:2", "203.0.113.5"),
    "a port": (PEER, "203.0.113.5:4711, 10.0.0.2:80", "203.0.113.5"),
    "IPv6 in brackets with a port": (PEER, "[2001:db8::5]:4711,[fd00::2]:80", "2001:db8::5"),
    "blanks and tabs": (PEER, " \t203.0.113.5\t,\t10.0.0.2 ", "203.0.113.5"),
    "a hundred callers": (PEER, ",".join(f"203.0.113.{i}" for i in range(100)), "203.0.113.99"),
    "a hundred entries": (PEER, "203.0.113.5" + ",10.0.0.2" * 99, "203.0.113.5"),
    "more than a hundred entries": (PEER, "203.0.113.5" + ",10.0.0.2" * 100, "10.0.0.2"),
    "a Unix socket": ("unix:", "198.51.100.1, 203.0.113.5, 10.0.0.2", "203.0.113.5"),
    "a Unix socket with a header that is no address": ("unix:", "203.0.113.5, unix:", "unix:"),
    "a caller who writes a Unix socket": (PEER, "203.0.113.5, unix:", PEER),
    "a peer who has left": ("", "203.0.113.5", ""),
}

NO_ADDRESS = {
    "nothing": "",
    "a word": "unknown",
    "an octet too high": "203.0.113.256",
    "an octet with a zero in front": "203.0.113.05",
    "other digits": "２０３.0.113.5",  # noqa: RUF001 the digits are meant to deceive
    "a port of no digits": "203.0.113.5:",
    "a port of too many digits": "203.0.113.5:123456",
    "an open bracket": "[2001:db8::5",
    "IPv4 in brackets": "[203.0.113.5]",
    "IPv6 with letters behind g": "2001:db8::g",
    "a zone": "fe80::1%eth0",
    "a zone that speaks JSON": 'fe80::1%", "key": "another',
    "a line break": "203.0.113.5\n",
    "an address and a thousand blanks before a word": "203.0.113.5" + " " * 1000 + "x",
    "an address with a thousand zeros": "::" + "0" * 1000,
}


@pytest.fixture
def proxies() -> TrustedProxies:
    return TrustedProxies(TRUSTED)


@pytest.mark.parametrize(("peer", "forwarded", "caller"), CASES.values(), ids=CASES)
def test_last_untrusted_address_is_the_client(
    proxies: TrustedProxies, peer: str, forwarded: str, caller: str
) -> None:
    for _ in range(2):
        assert proxies.client_address(peer, forwarded) == caller


@pytest.mark.parametrize("entry", NO_ADDRESS.values(), ids=NO_ADDRESS)
def test_invalid_address_ends_the_search(proxies: TrustedProxies, entry: str) -> None:
    """The peer that sent it counts: any client can have written the entries before it."""
    assert proxies.client_address(PEER, entry) == PEER
    assert proxies.client_address(PEER, f"203.0.113.5, {entry}") == PEER
    assert proxies.client_address(PEER, f"203.0.113.5, {entry}, 10.0.0.2") == "10.0.0.2"
    assert proxies.client_address(PEER, f"{entry}, 203.0.113.5") == "203.0.113.5"


def test_first_entry_is_the_client_if_all_are_trusted() -> None:
    everyone = TrustedProxies(["0.0.0.0/0", "::/0"])
    assert everyone.client_address("203.0.113.9", "198.51.100.1, ::1") == "198.51.100.1"


def test_peer_is_the_client_if_none_is_trusted() -> None:
    assert TrustedProxies([]).client_address(PEER, "203.0.113.5") == PEER
    assert TrustedProxies(["10.0.0.0/8"]).client_address("unix:", "203.0.113.5") == "unix:"


@pytest.mark.slow
@given(st.text() | st.lists(st.sampled_from([*"0123456789af.:[]%, "])).map("".join))
def test_result_is_always_an_address(forwarded: str) -> None:
    caller = TrustedProxies(TRUSTED).client_address(PEER, forwarded)
    assert normalize_address(caller) == caller != ""


def test_address_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies_module, "_MEMO_SIZE", 10)
    proxies = TrustedProxies(TRUSTED)
    for i in range(100):
        assert proxies.client_address(PEER, f"203.0.113.{i}") == f"203.0.113.{i}"
    assert proxies._hop.cache_info().currsize == 10  # noqa: SLF001 - the size of a cache


@pytest.mark.parametrize(
    ("reported", "address"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("2001:db8:0::5", "2001:db8::5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
        ("/run/socket", ""),
    ],
)
def test_peer_address_is_normalized(reported: str, address: str) -> None:
    assert normalize_address(reported) == address
