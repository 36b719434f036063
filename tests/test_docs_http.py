"""The HTTP reference: its exchange, its sample of a client, and what it says of connections."""

import json
import re
import socket
from collections.abc import Callable, Iterator

import pytest

from support.pages import ROOT, code_blocks, page
from support.processes.service import Client, Service, serving
from tornado_idv.limits import Exceeded, Limit
from tornado_idv.units import parse_rate
from tornado_idv.web.errors import REASONS, rate_limited
from tornado_idv.web.lookups import result_of_error

PAGE = page("docs/reference/http.md")
REQUEST, RESPONSE = (
    re.sub(r"\n", "\r\n", block.removesuffix("\n")) for block in code_blocks(PAGE, "http")
)
Sample = Callable[[int, bytes], bool]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo, as the page has its key."""
    config = (ROOT / "config.yaml").read_text(encoding="utf-8")
    config = config.replace("port: 8080", "port: 0").replace("port: 8081", "port: 0")
    config = config.replace("deploy/", f"{ROOT}/deploy/")
    with serving(config, tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest.fixture(scope="module")
def is_known() -> Sample:
    (sample,) = code_blocks(PAGE, "python")
    names = {"json": json}
    exec(sample, names)
    function: Sample = names["is_known"]  # type: ignore[assignment]
    return function


def test_exchange_is_the_documented_one_to_the_byte(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(REQUEST.encode())
        received = client.recv(65536).decode()
    assert re.sub("Date: .*", "", received) == re.sub("Date: .*", "", RESPONSE)


def test_client_of_the_page_decides_by_the_code(service: Service, is_known: Sample) -> None:
    def ask(path: str, nickname: str) -> bool:
        fields = dict(
            re.findall(r"^(Host|Authorization|Content-Type): (.*)\r$", REQUEST, re.MULTILINE)
        )
        body = json.dumps({"input": nickname}).encode()
        reply = Client(service.port).send("POST", path, fields, body)
        return is_known(reply.status, reply.body)

    assert ask("/api/v1/identify/url", "@alice")
    assert not ask("/api/v1/identify/url", "@unknown")
    with pytest.raises(RuntimeError, match="status 404, code no_such_route"):
        ask("/identify/url", "@alice")
    with pytest.raises(RuntimeError, match="status 422, code invalid_format"):
        ask("/api/v1/identify/url", "alice")


def test_first_request_of_the_readme_gets_its_response(service: Service) -> None:
    (console,) = code_blocks(page("README.md"), "console")
    _, response = console.rsplit("\n", 2)[-3:-1]
    fields = {"Host": "127.0.0.1", **dict(re.findall(r"-H '([^:]+): ([^']+)'", console))}
    ((path, body),) = re.findall(
        r"curl http://127\.0\.0\.1:8080(\S+).*-d '(.+)'", console, re.DOTALL
    )
    reply = Client(service.port).send("POST", path, fields, body.encode())
    assert (reply.status, reply.body.decode()) == (200, response)


@pytest.mark.parametrize("body", [b"<html>404 Not Found</html>", b"", b"404 page not found"])
def test_client_of_the_page_trusts_no_404_of_a_proxy(is_known: Sample, body: bytes) -> None:
    with pytest.raises(ValueError, match="char"):
        is_known(404, body)


def test_protocols_are_as_documented(service: Service) -> None:
    http_1_0 = REQUEST.replace("HTTP/1.1", "HTTP/1.0").encode()
    (reply,) = Client(service.port).until_closed(http_1_0)
    assert reply.status == 200
    (reply,) = Client(service.port).until_closed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert reply.code == "bad_request"
    options = {"Host": "x", "Origin": "https://x.example", "Accept-Encoding": "gzip"}
    reply = Client(service.port).send("OPTIONS", "/api/v1/identify/url", options)
    assert reply.status == 405
    assert not {"access-control-allow-origin", "content-encoding"} & {*reply.headers}


def test_every_reason_is_documented_with_its_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.partition("### Reasons")[2], re.MULTILINE)
    assert rows == [
        (reason, error.code)
        for error in sorted(REASONS, key=lambda error: error.status, reverse=True)
        for reason in REASONS[error]
    ]


def test_response_over_a_limit_is_as_documented() -> None:
    text = page("docs/reference/limits.md")
    (response,) = code_blocks(text, "http")
    limit = Limit("requests", parse_rate(re.findall("requests: (.*?) *#", text)[0]))
    status, fields = response.split("\n", 1)
    assert status == "HTTP/1.1 429 Too Many Requests"
    error = rate_limited(Exceeded(limit, 0.2))
    assert result_of_error(error).fields == fields.replace("\n", "\r\n")
