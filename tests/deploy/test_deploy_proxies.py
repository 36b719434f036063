"""nginx and haproxy, as configured in deploy/, change nothing of a response but its framing."""

import http.client
import json
import os
import pwd
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from support.http.certificate import SELF_SIGNED
from support.http.clients import ALICE, KINDS, calling
from support.http.load import loaded
from support.http.threaded_server import QuietHandler, QuietServer, serving_in_thread
from support.processes.ports import free_port, listens
from support.processes.process import ServiceProcess, children, eventually, running
from support.processes.proxies import (
    RIGHTS,
    connect,
    find_tool,
    nginx_command,
    running_program,
    substitute,
)
from support.processes.service import (
    CARDS_ONLY_KEY,
    CONFIG,
    EXPIRED_KEY,
    FIXTURE,
    KEY,
    lookup_request,
)
from support.processes.socket_activation import held_sockets, serving_activated
from tornado_idv.client import Unexpected
from tornado_idv.web.errors import ApiError

pytestmark = [pytest.mark.slow, pytest.mark.ci]

DEPLOY = Path(__file__).parents[2] / "deploy"
UNUSED = 1
"""A port of the service on which nothing listens."""
URL, CARD = "/api/v1/identify/url", "/api/v1/identify/card"
JSON = {"Content-Type": "application/json"}
CASES: dict[str, tuple[str, str, Mapping[str, str], bytes]] = {
    "found": ("POST", URL, JSON, b'{"input": "@alice"}'),
    "found by card": ("POST", CARD, JSON, b'{"card_number": "4000123412341234"}'),
    "not found": ("POST", URL, JSON, b'{"input": "@unknown"}'),
    "wrong format": ("POST", URL, JSON, b'{"input": "alice"}'),
    "no JSON": ("POST", URL, JSON, b"{"),
    "expired key": ("POST", URL, JSON | {"Authorization": f"Bearer {EXPIRED_KEY}"}, b"{}"),
    "no key": ("POST", URL, JSON | {"Authorization": ""}, b"{}"),
    "no route": ("POST", "/nowhere", JSON, b"{}"),
    "wrong method": ("GET", URL, {}, b""),
    "other type": ("POST", URL, {"Content-Type": "text/plain"}, b"{}"),
    "body too large": ("POST", URL, JSON, b" " * 20_000),
    "header too large": ("POST", URL, JSON | {"X-Filler": "x" * 17_000}, b"{}"),
    "target too long": ("POST", f"/{'x' * 3000}", JSON, b"{}"),
    "health": ("GET", "/healthz", {}, b""),
}
FIELDS = [
    "Content-Type",
    "Cache-Control",
    "X-Content-Type-Options",
    "X-Request-ID",
    "WWW-Authenticate",
    "Allow",
    "Retry-After",
]
Reply = tuple[int, dict[str, str | None], bytes]
Proxy = Callable[..., AbstractContextManager[int]]


@contextmanager
def nginx(
    service_port: int,
    folder: Path,
    changes: Mapping[str, str] | None = None,
    *,
    plain: int | None = None,
) -> Iterator[int]:
    port = free_port()
    site = substitute(
        (DEPLOY / "nginx" / "tornado-idv.conf").read_text(encoding="utf-8"),
        {
            "    listen [::]:80;\n": "",
            "    listen [::]:443 ssl;\n": "",
            "listen 80;": f"listen 127.0.0.1:{plain or free_port()};",
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
            "server 127.0.0.1:8080": f"server 127.0.0.1:{service_port}",
            **(changes or {}),
        },
    )
    with running_program(nginx_command(site, folder), port, folder / "proxy.log"):
        yield port


@contextmanager
def haproxy(
    service_port: int,
    folder: Path,
    changes: Mapping[str, str] | None = None,
    *,
    plain: int | None = None,
) -> Iterator[int]:
    path, port, certificate = find_tool("haproxy"), free_port(), folder / "site.pem"
    certificate.write_text(SELF_SIGNED)
    config = folder / "haproxy.cfg"
    config.write_text(
        substitute(
            (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8"),
            {
                "bind :::80 v4v6": f"bind 127.0.0.1:{plain or free_port()}",
                "bind :::443 v4v6": f"bind 127.0.0.1:{port}",
                **({} if os.geteuid() == 0 else dict.fromkeys(RIGHTS, "")),
                "/etc/haproxy/tornado-idv.pem": str(certificate),
                "server idv1 127.0.0.1:8080": f"server idv1 127.0.0.1:{service_port}",
                "inter 2s": "inter 50ms",
                # Each thread has idle connections of its own, and mostly takes those of others.
                "tune.bufsize 32768\n": "tune.bufsize 32768\n    nbthread 1\n",
                **(changes or {}),
            },
        )
    )
    with running_program([path, "-db", "-f", str(config)], port, folder / "proxy.log"):
        yield port


PROXIES = pytest.mark.parametrize("proxy", [nginx, haproxy])


def send(connection: http.client.HTTPConnection, name: str, key: str = f"Bearer {KEY}") -> Reply:
    method, path, fields, body = CASES[name]
    headers = {"Authorization": key, "X-Request-ID": "a-1"} | {**fields}
    headers = {field: value for field, value in headers.items() if value}
    connection.request(method, path, body or None, headers)
    response = connection.getresponse()
    received = {each: response.headers[each] for each in FIELDS}
    if received["X-Request-ID"] != "a-1":  # rejected before it was parsed
        received["X-Request-ID"] = "new"
    return response.status, received, response.read()


def send_alone(port: int, name: str, key: str = f"Bearer {KEY}") -> Reply:
    with connect(port) as client:
        return send(client, name, key)


@PROXIES
def test_responses_are_the_same_behind_the_proxy(
    service: ServiceProcess, proxy: Proxy, tmp_path: Path
) -> None:
    direct = {}
    for name in CASES:
        with closing(http.client.HTTPConnection("127.0.0.1", service.port)) as client:
            direct[name] = send(client, name)
    assert {reply[0] for reply in direct.values()} == {200, 401, 404, 405, 413, 414, 415, 422, 431}
    with proxy(service.port, tmp_path) as port:
        assert {name: send_alone(port, name) for name in CASES} == direct
        with connect(port) as kept:
            for name in ("found", "not found", "no key", "found by card"):
                assert send(kept, name) == direct[name]


@PROXIES
def test_connections_to_the_service_are_used_again(proxy: Proxy, tmp_path: Path) -> None:
    """By clients with a connection for each request; a stand-in counts connections with one."""
    used = set()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            used.add(self.client_address)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(200)

        def do_GET(self) -> None:  # noqa: N802
            self.reply(200)

    with (
        serving_in_thread(QuietServer(("127.0.0.1", 0), Handler)) as server,
        proxy(server.server_port, tmp_path) as port,
    ):
        for _ in range(10):
            assert send_alone(port, "found")[0] == 200
    assert len(used) == 1


@PROXIES
def test_address_of_client_is_logged(service: ServiceProcess, proxy: Proxy, tmp_path: Path) -> None:
    """Not one that the client claims to have."""
    mark = f"mark-{secrets.token_hex(8)}"
    with proxy(service.port, tmp_path) as port, connect(port, "127.0.0.9") as client:
        client.request("GET", "/", headers={"X-Request-ID": mark, "X-Forwarded-For": "192.0.2.1"})
        assert client.getresponse().status == 404
    eventually(lambda: mark in service.read_log())
    (line,) = (line for line in service.read_log().splitlines() if mark in line)
    assert json.loads(line)["client"] == "127.0.0.9"


@PROXIES
def test_proxy_limits_the_requests_of_a_key_as_the_guide_says(
    service: ServiceProcess, proxy: Proxy, tmp_path: Path
) -> None:
    """Of one key alone, however it is written: not of another one, and not without one."""
    guide = (DEPLOY.parent / "docs" / "guide" / "deploy.md").read_text(encoding="utf-8")
    if proxy is nginx:
        block = guide.partition("```nginx\n")[2].partition("```")[0]
        block = substitute(block, {"rate=100r/s": "rate=1r/m", "burst=100": "burst=2"})
        outside, _, inside = block.partition("# in location /\n")
        places = {"upstream tornado_idv {": outside, "proxy_pass ": inside}
    else:
        block = guide.partition("```haproxy\n")[2].partition("```")[0]
        changes = {"gt 100": "gt 3", "http_req_rate(1s)": "http_req_rate(1h)", "10s": "1h"}
        places = {"http-request set-header X-F": substitute(block, changes)}
    with proxy(service.port, tmp_path, {old: new + old for old, new in places.items()}) as port:
        assert [send_alone(port, "found")[0] for _ in range(3)] == [200] * 3
        for spelling in ("Bearer ", "bearer ", "BEARER  "):
            for name in ("found", "not found"):
                status, fields, body = send_alone(port, name, f"{spelling}{KEY}")
                assert (status, body) == (429, ApiError.RATE_LIMITED.body)
                assert (fields["Content-Type"], fields["Retry-After"]) == ("application/json", "1")
        other = f"Bearer {CARDS_ONLY_KEY}"
        assert [send_alone(port, "found by card", other)[0] for _ in range(3)] == [200] * 3
        assert [send_alone(port, "no key")[0] for _ in range(9)] == [401] * 9
    assert not any(KEY in each.read_text() for each in tmp_path.glob("*.log"))


def configured(folder: Path, server: str, name: str = "config") -> Path:
    (folder / "users.yaml").write_text(FIXTURE)
    path = folder / f"{name}.yaml"
    text = CONFIG.replace("port: 0,", f"{server}, health_path: /healthz,")
    path.write_text(text + "  - {name: users, kind: yaml, path: users.yaml}\n")
    return path


@PROXIES
def test_proxy_uses_a_unix_socket(proxy: Proxy, tmp_path: Path) -> None:
    """As the example in the file, where haproxy sees the path below its chroot."""
    tmp_path.chmod(0o711)  # haproxy is another user, and this its root
    listen = 'listen: ["unix:http.sock", "127.0.0.1:0"], trusted_proxies: ["unix:"]'
    changes = over_unix_socket(proxy, tmp_path / "http.sock", tmp_path)
    with running(configured(tmp_path, listen)) as service:
        with closing(http.client.HTTPConnection("127.0.0.1", service.port)) as client:
            direct = {each: send(client, each) for each in ("found", "not found", "health")}
        with proxy(UNUSED, tmp_path, changes) as port:
            eventually(lambda: send_alone(port, "health")[0] == 200)
            assert {name: send_alone(port, name) for name in direct} == direct
            with connect(port, "127.0.0.9") as client:
                assert send(client, "found") == direct["found"]
        eventually(lambda: '"client":"127.0.0.9"' in service.read_log())


def over_unix_socket(proxy: Proxy, path: Path, folder: Path) -> dict[str, str]:
    """Return the changes that make a proxy use the example in its file."""
    if proxy is nginx:
        return {
            f"    server 127.0.0.1:{UNUSED};\n": "",
            "# server unix:/run/tornado-idv/http.sock;": f"server unix:{path};",
        }
    is_root = os.geteuid() == 0
    place = path.relative_to(folder if is_root else "/")
    return {
        f"    server idv1 127.0.0.1:{UNUSED}\n": "",
        "# server idv1 unix@/idv.sock": f"server idv1 unix@/{place}",
        **({"chroot /var/lib/haproxy": f"chroot {folder}"} if is_root else {}),
    }


@PROXIES
@pytest.mark.parametrize("delay", ["0s", "1s"])
def test_no_request_fails_in_a_restart_with_sockets_of_systemd(
    proxy: Proxy, delay: str, tmp_path: Path
) -> None:
    """Though there is no other server: connections wait for the next process."""
    config = configured(tmp_path, f"drain: {{delay: {delay}}}, trusted_proxies: ['unix:']")
    config.write_text(config.read_text().replace("idle_timeout: 1s", "idle_timeout: 10s"))
    with held_sockets(tmp_path) as held, ExitStack() as stack:
        path = Path(held[1].getsockname())
        path.chmod(0o666)
        tmp_path.chmod(0o711)
        changes = over_unix_socket(proxy, path, tmp_path)
        if proxy is haproxy:
            changes |= {f" ssl crt {tmp_path}/site.pem": "", "inter 50ms": "inter 2s"}
        else:
            changes |= {" ssl;": ";"}
        process = stack.enter_context(serving_activated(held, config))
        with (
            proxy(UNUSED, tmp_path, changes) as front,
            loaded(front, lookup_request("@alice")) as load,
        ):
            load.wait_for(100)
            for _ in range(2):
                process.terminate()
                assert process.wait(10) == 0
                process = stack.enter_context(serving_activated(held, config))
                load.wait_for(100)
    assert {*load.results} == {"ok"}


@PROXIES
def test_service_that_is_down_is_reported_as_unavailable(proxy: Proxy, tmp_path: Path) -> None:
    with proxy(UNUSED, tmp_path) as port:
        status, fields, body = send_alone(port, "found")
    assert (status, fields["Content-Type"], fields["Retry-After"]) == (503, "application/json", "1")
    assert json.loads(body)["code"] == "backend_unavailable"


def test_request_whose_connection_times_out_is_passed_on(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(3):  # no more connections are accepted
            client = waiting.enter_context(socket.socket())
            client.settimeout(0)
            client.connect_ex(full.getsockname())
        changes = {
            "    keepalive 64;": f"    server 127.0.0.1:{full.getsockname()[1]}; keepalive 64;",
            "proxy_connect_timeout 1s": "proxy_connect_timeout 100ms",
        }
        with nginx(service.port, tmp_path, changes) as port:
            assert [send_alone(port, "found")[0] for _ in range(2)] == [200, 200]
    assert "upstream timed out" in (tmp_path / "error.log").read_text()


@pytest.mark.parametrize("drops_own", [False, True])
async def test_client_behind_a_proxy_that_replaces_request_ids(
    service: ServiceProcess, tmp_path: Path, *, drops_own: bool
) -> None:
    """It is served; only a proxy that drops its own id, too, makes each lookup undetermined."""
    fields = "proxy_set_header Host $host; proxy_set_header X-Request-ID $request_id;"
    if drops_own:
        fields += ' proxy_set_header X-IDV-Request-ID "";'
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with nginx(service.port, tmp_path, {"proxy_set_header Host $host;": fields}) as port:
        url = f"https://127.0.0.1:{port}"
        for kind in KINDS:
            async with calling(kind, url, KEY, ssl_context=trusting) as call:
                for _ in range(3):  # by the handlers, and by the fast path
                    if drops_own:
                        with pytest.raises(Unexpected, match=r"a proxy \(nginx\) has changed"):
                            await call("find", "@unknown")
                    else:
                        assert await call("find", "@unknown") is None
                        assert await call("find", "@alice") == ALICE


HOST = b"POST / HTTP/1.1\r\nHost: idv.example\r\n"
MALFORMED: dict[str, tuple[bytes, ApiError]] = {
    "no request line": (b"GARBAGE\r\n\r\n", ApiError.BAD_REQUEST),
    "bad chunk": (HOST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", ApiError.BAD_REQUEST),
    "other encoding": (HOST + b"Transfer-Encoding: gzip\r\n\r\n", ApiError.BAD_REQUEST),
    "other version": (b"GET / HTTP/7.0\r\nHost: a\r\n\r\n", ApiError.BAD_REQUEST),
    "trace": (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", ApiError.METHOD),
    "large body": (HOST + b"Content-Length: 9000000\r\n\r\n", ApiError.BODY_TOO_LARGE),
    "long target": (b"GET /%b HTTP/1.1\r\n" % (b"x" * 40_000), ApiError.URI_TOO_LONG),
    "large header": (HOST + b"X-A: %b\r\n" % (b"x" * 40_000), ApiError.HEADERS_TOO_LARGE),
}


def exchange(client: socket.socket, request: bytes) -> tuple[int, dict[str, str | None], bytes]:
    client.sendall(request)
    with closing(http.client.HTTPResponse(client)) as response:
        response.begin()
        return response.status, {each: response.headers[each] for each in FIELDS}, response.read()


def test_requests_that_nginx_rejects_get_the_error_records_of_the_service(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """The last one is sent without TLS."""
    with nginx(service.port, tmp_path) as port:
        replies = {}
        for name, (request, _) in MALFORMED.items():
            with connect(port) as client:
                client.connect()
                replies[name] = exchange(client.sock, request)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            replies["no TLS"] = exchange(plain, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    expected = {name: error for name, (_, error) in MALFORMED.items()}
    for name, error in (expected | {"no TLS": ApiError.BAD_REQUEST}).items():
        status, fields, body = replies[name]
        assert (name, status, body) == (name, error.status, error.body)
        assert len(fields.pop("X-Request-ID") or "") == 32
        assert fields == {
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "WWW-Authenticate": None,
            "Allow": "POST" if error is ApiError.METHOD else None,
            "Retry-After": None,
        }


@PROXIES
def test_plain_requests_are_redirected_to_https(proxy: Proxy, tmp_path: Path) -> None:
    plain = free_port()
    with proxy(UNUSED, tmp_path, plain=plain):
        eventually(lambda: listens(plain))
        with closing(http.client.HTTPConnection("127.0.0.1", plain, timeout=10)) as client:
            client.request("POST", "/a?b=c", headers={"Host": "idv.example"})
            response = client.getresponse()
    assert (response.status, response.headers["Location"]) == (308, "https://idv.example/a?b=c")


def test_haproxy_gives_up_its_rights(service: ServiceProcess, tmp_path: Path) -> None:
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
    assert all(line in text for line in RIGHTS)
    if os.geteuid() != 0:
        pytest.skip("only root can give up rights")
    with haproxy(service.port, tmp_path):
        started = [Path(f"/proc/{pid}") for pid in children(os.getpid())]
        (found,) = (each for each in started if str(tmp_path) in (each / "cmdline").read_text())
        owners = "\nUid:" + f"\t{pwd.getpwnam('haproxy').pw_uid}" * 4 + "\n"
        eventually(lambda: owners in (found / "status").read_text())  # it listens before
        assert (found / "root").resolve() == Path("/var/lib/haproxy")


def test_no_request_fails_in_rolling_restart_behind_haproxy_without_retries(tmp_path: Path) -> None:
    """Its health checks see the stop before the service refuses connections."""
    ports = [free_port(), free_port()]
    configs = {
        port: configured(tmp_path, f"port: {port}, drain: {{delay: 1s}}", str(port))
        for port in ports
    }
    changes = {
        "purge-delay 4s\n": f"purge-delay 4s\n    server idv2 127.0.0.1:{ports[1]}\n",
        f" ssl crt {tmp_path}/site.pem": "",
        "    retry-on conn-failure empty-response\n    retries 2\n": "    retries 0\n",
    }
    with ExitStack() as stack:
        services = [stack.enter_context(running(config)) for config in configs.values()]
        with (
            haproxy(ports[0], tmp_path, changes) as front,
            loaded(front, lookup_request("@alice"), pause=0.001) as load,
        ):
            for service in services:
                load.wait_for(50)
                service.send_signal()
                assert service.wait() == 0
                load.wait_for(50)
                again = stack.enter_context(running(configs[service.port]))
                eventually(lambda: '"route":"identify/url"' in again.read_log())  # noqa: B023
            load.wait_for(50)
    assert {*load.results} == {"ok"}
