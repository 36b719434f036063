"""`server.listen`: what it may hold, and what it excludes."""

from pathlib import Path

import pytest

from support.fixtures.configs import GOOD, Load, ProblemsIn
from tornado_idv.config.address import Address
from tornado_idv.keys.token import issue

FORM = "must be like 127.0.0.1:8080, [::1]:8080 or unix:/run/idv/http.sock"
REPLACED = "server.listen replaces this setting; remove it"


def listening(*addresses: str) -> str:
    return f"{GOOD}server: {{listen: [{', '.join(map(repr, addresses))}]}}\n"


def test_addresses_are_read_in_their_order(load_text: Load, tmp_path: Path) -> None:
    text = listening(
        "unix:/run/idv.sock", "127.0.0.1:8080", "[::1]:0", "idv.example:65535", "unix:s"
    )
    assert load_text(text).server.addresses == (
        Address(path=Path("/run/idv.sock")),
        Address("127.0.0.1", 8080),
        Address("::1", 0),
        Address("idv.example", 65535),
        Address(path=tmp_path / "s"),
    )


def test_without_it_host_and_port_are_the_address(load_text: Load) -> None:
    text = GOOD + "server: {host: '::', port: 81}"
    (address,) = load_text(text).server.addresses
    assert (address, address.url("http")) == (Address("::", 81), "http://[::1]:81")


@pytest.mark.parametrize(
    "address",
    [
        *("8080", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8o80"),
        *(":8080", "::1:8080", "[::1]", "[::1]8080", "[127.0.0.1]:80", "[a:b]:80", "a b:80"),
        *("/run/idv.sock", "http://127.0.0.1:80", "", "UNIX:/run/idv.sock", "unix:"),
        *({"a": "b"}, ["a"]),
    ],
    ids=str,
)
def test_anything_else_is_reported(problems_in: ProblemsIn, address: object) -> None:
    text = f"{GOOD}server: {{listen: [{address!r}]}}\n"
    assert problems_in(text) == [f"3:19: server.listen[0]: {FORM}"]


def test_name_of_an_abstract_socket_is_refused(problems_in: ProblemsIn, load_text: Load) -> None:
    text = "abstract sockets are not supported; write unix: and the path of a file"
    assert problems_in(listening("unix:@idv")) == [f"3:19: server.listen[0]: {text}"]
    assert load_text(listening("unix:./@idv")).server.addresses[0].path is not None


def test_address_that_cannot_be_bound_is_refused(problems_in: ProblemsIn, load_text: Load) -> None:
    """Otherwise the service would not start, although `check` had passed."""
    text = "the path of a Unix socket may have at most 107 bytes"
    assert problems_in(listening(f"unix:/{'ü' * 53}x")) == [f"3:19: server.listen[0]: {text}"]
    assert load_text(listening(f"unix:/{'x' * 106}", "[::1]:0", "[::1]:0")).server.addresses
    (problem,) = problems_in(listening("unix:s", "unix:s"))
    assert problem.endswith(": server.listen[1]: this address is listed twice, see line 3")


def test_host_and_port_beside_it_are_to_be_left_out(problems_in: ProblemsIn) -> None:
    text = f"{GOOD}server: {{host: 127.0.0.1, listen: ['127.0.0.1:80'], port: 80}}\n"
    assert problems_in(text) == [f"3:16: server.host: {REPLACED}", f"3:59: server.port: {REPLACED}"]
    (problem,) = problems_in(listening())
    assert problem == "3:18: server.listen: too few items: at least 1, not 0"


SERVERS = [
    *((f"workers: 1, host: {host}", host) for host in ("0.0.0.0", "'::'", "192.0.2.1", "a.b")),
    *((f"host: {host}", "") for host in ("127.9.9.9", "'::1'", "LocalHost")),
    ("listen: ['unix:/s', '127.0.0.1:1', '[::1]:0', 'localhost:0']", ""),
    ("listen: ['0.0.0.0:1', 'a.b:1', '[::1]:1', 'unix:/s']", "0.0.0.0, a.b"),
]


@pytest.mark.parametrize(("server", "exposed"), SERVERS)
def test_plain_tokens_are_refused_and_plain_http_is_warned_of_where_others_can_connect(
    load_text: Load, problems_in: ProblemsIn, server: str, exposed: str
) -> None:
    text = f"{GOOD}server: {{{server}}}\n"
    settings = load_text(text).server
    warning = settings.warning(settings.addresses) or ": "
    begin, _, _ = warning.partition(": ")
    assert begin == (f"plain HTTP on {exposed.strip(chr(39))}" if exposed else "")
    with_token = f"{text}auth: {{keys: [{{id: a, token: {issue('a')}}}]}}"
    if not exposed:
        assert load_text(with_token).auth.keys[0].token is not None
        return
    (problem,) = problems_in(with_token)
    assert problem.startswith("4:30: auth.keys[0].token: a plain token is only allowed with demo:")
    assert load_text(f"{with_token}\ndemo: true").auth.keys[0].token is not None


@pytest.mark.parametrize(
    ("protection", "is_warned"),
    [
        ("trusted_proxies: [10.0.0.1]", False),
        ("trusted_proxies: [10.0.0.1, 'unix:']", False),
        ("trusted_proxies: ['unix:']", True),
        ("tls: {cert_file: tls.pem, key_file: tls.pem}", False),
    ],
)
def test_tls_here_or_in_a_proxy_is_no_plain_http(
    load_text: Load, protection: str, *, is_warned: bool
) -> None:
    settings = load_text(f"{GOOD}server: {{host: 0.0.0.0, {protection}}}\n").server
    assert (settings.warning(settings.addresses) is not None) == is_warned
