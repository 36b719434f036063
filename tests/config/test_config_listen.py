"""`server.listen`: what it may hold, and what it excludes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fixtures.configs import GOOD, Load, ProblemsIn
from tornado_idv.config.address import Address
from tornado_idv.keys.token import issue

FORM = "must be like 127.0.0.1:8080, [::1]:8080 or unix:/run/idv/http.sock"
REPLACED = "server.listen replaces this setting; remove it"
TOKEN = f"auth: {{keys: [{{id: a, token: {issue('a')}}}]}}"


def listening(*addresses: str) -> str:
    return f"{GOOD}server: {{listen: [{', '.join(map(repr, addresses))}]}}\n"


def test_addresses_are_read_in_their_order(load_text: Load, tmp_path: Path) -> None:
    text = listening("unix:/run/idv.sock", "127.0.0.1:8080", "[::1]:0", "idv.example:443", "unix:s")
    assert load_text(text).server.addresses == (
        Address(path=Path("/run/idv.sock")),
        Address("127.0.0.1", 8080),
        Address("::1", 0),
        Address("idv.example", 443),
        Address(path=tmp_path / "s"),
    )


def test_without_it_host_and_port_are_the_address(load_text: Load) -> None:
    text = GOOD + "server: {host: '::', port: 81}"
    (address,) = load_text(text).server.addresses
    assert (address, address.url("http")) == (Address("::", 81), "http://[::1]:81")


@pytest.mark.parametrize(
    "address",
    [
        *("8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8o80"),
        *(":8080", "::1:8080", "[::1]", "[::1]8080", "[127.0.0.1]:80", "[a:b]:80", "a b:80"),
        *("/run/idv.sock", "http://127.0.0.1:80", "", "UNIX:/run/idv.sock", "unix:"),
    ],
)
def test_anything_else_is_reported(problems_in: ProblemsIn, address: str) -> None:
    assert problems_in(listening(address)) == [f"3:19: server.listen[0]: {FORM}"]


def test_name_of_an_abstract_socket_is_refused(problems_in: ProblemsIn, load_text: Load) -> None:
    text = "abstract sockets are not supported; write unix: and the path of a file"
    assert problems_in(listening("unix:@idv")) == [f"3:19: server.listen[0]: {text}"]
    assert load_text(listening("unix:./@idv")).server.addresses[0].path is not None


def test_address_that_cannot_be_bound_is_refused(problems_in: ProblemsIn, load_text: Load) -> None:
    """Otherwise the service would not start, although `check` had passed."""
    text = "the path of a Unix socket may have at most 107 bytes"
    assert problems_in(listening(f"unix:/{'x' * 107}")) == [f"3:19: server.listen[0]: {text}"]
    assert load_text(listening(f"unix:/{'x' * 106}", "[::1]:0", "[::1]:0")).server.addresses
    (problem,) = problems_in(listening("unix:s", "unix:s"))
    assert problem.endswith(": server.listen[1]: this address is listed twice, see line 3")


@pytest.mark.parametrize("address", ["{a: b}", "[a]"])
def test_an_item_is_text(problems_in: ProblemsIn, address: str) -> None:
    text = f"{GOOD}server: {{listen: ['127.0.0.1:1', {address}]}}\n"
    assert problems_in(text) == [f"3:34: server.listen[1]: {FORM}"]


def test_an_empty_list_is_reported(problems_in: ProblemsIn) -> None:
    (problem,) = problems_in(listening())
    assert problem == "3:18: server.listen: too few items: at least 1, not 0"


def test_host_and_port_beside_it_are_to_be_left_out(problems_in: ProblemsIn) -> None:
    text = f"{GOOD}server: {{host: 127.0.0.1, listen: ['127.0.0.1:80'], port: 80}}\n"
    assert problems_in(text) == [f"3:16: server.host: {REPLACED}", f"3:59: server.port: {REPLACED}"]


@pytest.mark.parametrize("others", [[], ["127.0.0.1:0", "[::1]:0", "localhost:0"]])
def test_a_plain_token_is_allowed_where_only_this_machine_can_connect(
    load_text: Load, others: list[str]
) -> None:
    text = listening("unix:/run/idv.sock", *others)
    assert load_text(text + TOKEN).auth.keys[0].token is not None


def test_a_plain_token_is_refused_where_others_can_connect(problems_in: ProblemsIn) -> None:
    (problem,) = problems_in(listening("unix:/run/idv.sock", "0.0.0.0:80", "127.0.0.1:81") + TOKEN)
    assert problem.startswith("4:30: auth.keys[0].token: a plain token is only allowed with demo:")


@pytest.mark.parametrize(
    ("server", "exposed"),
    [
        *((f"host: {host}", host) for host in ("0.0.0.0", "'::'", "192.0.2.1", "10.1.2.3", "a.b")),
        *((f"host: {host}", "") for host in ("127.0.0.1", "127.9.9.9", "'::1'", "LocalHost")),
        ("host: 0.0.0.0, trusted_proxies: [10.0.0.1]", ""),
        ("host: 0.0.0.0, tls: {cert_file: tls.pem, key_file: tls.pem}", ""),
        ("listen: ['unix:/s', '127.0.0.1:1']", ""),
        ("listen: ['unix:/s', '0.0.0.0:1'], trusted_proxies: [10.0.0.1, 'unix:']", ""),
        (
            "listen: ['unix:/s', '0.0.0.0:1', '[::1]:1', 'a.b:1'], trusted_proxies: ['unix:']",
            "0.0.0.0, a.b",
        ),
    ],
)
def test_addresses_of_plain_http_are_warned_of(load_text: Load, server: str, exposed: str) -> None:
    settings = load_text(f"{GOOD}server: {{{server}}}\n").server
    warning = settings.warning(settings.addresses) or ": "
    begin, _, _ = warning.partition(": ")
    assert begin == (f"plain HTTP on {exposed.strip(chr(39))}" if exposed else "")
