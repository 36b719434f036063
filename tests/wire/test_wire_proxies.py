"""Behind nginx and haproxy: what a proxy sends on as one request is answered as one.

Each request is followed by one more, which has an id of its own. If proxy and service saw the
end of the first in different places, the service would answer what no client asked for, or a
client would get the answer to another client's request.
"""

import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.http.contract_values import TABLE
from support.http.framing_spellings import spellings
from support.processes.ports import free_port
from support.processes.process import ServiceProcess, eventually, running
from support.processes.proxies import find_tool, running_program
from support.processes.service import CONFIG, FIXTURE

pytestmark = pytest.mark.slow

HARD = "WIRE_HARD" in os.environ
ODD = {f"spelling {each.lines!r}": each.odd for each in [*spellings()][:: 10 if HARD else 199]}
CASES = {name: data for name, data in {**TABLE, **ODD}.items() if b" HTTP/" in data}
"""Without HTTP/0.9, which nginx answers without a head, so that nothing can be determined."""
AT_ONCE = 16
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5]\d\d) ")
_ID = re.compile(rb"X-Request-ID: (\S+)", re.IGNORECASE)

NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_header_timeout 2s;
  client_body_timeout 2s;
  lingering_timeout 500ms;
  underscores_in_headers on;
  ignore_invalid_headers off;
  upstream service {{
    server 127.0.0.1:{service};
    keepalive 8;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://service;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_request_buffering off;
    }}
  }}
}}
"""
HAPROXY = """\
global
  nbthread 1
defaults
  mode http
  http-reuse always
  timeout connect 2s
  timeout client 1s
  timeout server 5s
  timeout http-request 1s
frontend clients
  bind 127.0.0.1:{port}
  default_backend service
backend service
  server service 127.0.0.1:{service}
"""
HAPROXY_LENIENT = HAPROXY.replace(
    "  default_backend", "  option accept-invalid-http-request\n  default_backend"
)
PROXIES = {
    "nginx": ("nginx", NGINX, ["-c", "{config}", "-e", "{folder}/nginx.log"]),
    "haproxy": ("haproxy", HAPROXY, ["-db", "-f", "{config}"]),
    "haproxy, lenient": ("haproxy", HAPROXY_LENIENT, ["-db", "-f", "{config}"]),
}


@dataclass(frozen=True)
class Heard:
    """What came back: the statuses, and the ids of the service's own answers."""

    statuses: list[int]
    ids: list[bytes]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A process that logs each answer with its id."""
    folder = tmp_path_factory.mktemp("behind")
    (folder / "users.yaml").write_text(FIXTURE)
    config = folder / "config.yaml"
    backend = "  - {name: users, kind: yaml, path: users.yaml}\n"
    config.write_text(f"{CONFIG}{backend}logging: {{level: info, format: json}}\n")
    with running(config) as process:
        yield process


def answered(service: ServiceProcess) -> set[str]:
    """The ids of all that the service's handlers answered up to now."""
    mark = f"mark-{secrets.token_hex(8)}"
    data = f"GET / HTTP/1.1\r\nHost: x\r\nX-Request-ID: {mark}\r\nConnection: close\r\n\r\n"
    hear(service.port, data.encode())
    eventually(lambda: mark in service.read_log())
    lines = map(json.loads, service.read_log().splitlines())
    ids = {line["request_id"] for line in lines if line["event"] == "request"}
    return {each for each in ids if not each.startswith("mark-")}


@contextmanager
def proxy(name: str, service: ServiceProcess, folder: Path) -> Iterator[int]:
    """Runs a proxy in front of the service; gives its port."""
    program, template, arguments = PROXIES[name]
    path, port = find_tool(program), free_port()
    config = folder / "proxy.conf"
    config.write_text(template.format(folder=folder, port=port, service=service.port))
    words = [each.format(config=config, folder=folder) for each in arguments]
    with running_program([path, *words], port, folder / "proxy.log"):
        yield port


def hear(port: int, data: bytes) -> Heard:
    """Sends bytes, and takes all that comes back up to the end."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        try:
            sock.sendall(data)
            while piece := sock.recv(65536):
                got += piece
        except ConnectionError:
            pass  # refused before all of it was sent
    return Heard([int(status) for status in _STATUS.findall(got)], _ID.findall(got))


def play(port: int, prefix: str) -> dict[str, Heard]:
    """What comes of each case, with a last request behind it, some cases at a time."""

    def one(numbered: tuple[int, str]) -> Heard:
        number, name = numbered
        last = f"GET / HTTP/1.1\r\nHost: x\r\nX-Request-ID: {prefix}-{number}\r\n"
        return hear(port, CASES[name] + f"{last}Connection: close\r\n\r\n".encode())

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(CASES, pool.map(one, enumerate(CASES)), strict=True))


@pytest.fixture(scope="module")
def directly(service: ServiceProcess) -> dict[str, Heard]:
    """What comes of each case without a proxy, where every answer has a client, too."""
    before = answered(service)
    heard = play(service.port, "direct")
    check_clients(service, heard, "direct", before)
    return heard


@pytest.mark.parametrize("name", PROXIES)
def test_behind_a_proxy_no_request_is_smuggled(
    service: ServiceProcess, directly: dict[str, Heard], name: str, tmp_path: Path
) -> None:
    """As many answers as without it, unless one of the two refuses what the other reads."""
    before = answered(service)
    with proxy(name, service, tmp_path) as port:
        heard = play(port, "behind")
    for case, what in heard.items():
        there = directly[case].statuses
        assert len(what.statuses) == len(there) or 1 in (len(what.statuses), len(there)), case
    for case in CASES:
        if not case.startswith(("read", "refused", "spelling")):
            assert heard[case].statuses == directly[case].statuses, case
    check_clients(service, heard, "behind", before)


def check_clients(
    service: ServiceProcess, heard: dict[str, Heard], prefix: str, before: set[str]
) -> None:
    """Every answer of the service went to a client, the last to the client who asked last."""
    got: set[bytes] = set()
    for number, what in enumerate(heard.values()):
        own = f"{prefix}-{number}".encode()
        assert got.isdisjoint(what.ids)
        got.update(what.ids)
        lasts = [each for each in what.ids if each.startswith(prefix.encode())]
        assert lasts in ([], [own])
        assert not lasts or what.ids[-1] == own
    assert {each.encode() for each in answered(service) - before} <= got
