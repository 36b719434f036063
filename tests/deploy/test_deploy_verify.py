"""nginx and haproxy ask about each request of a site, and say of a user only what is known."""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from support.http.certificate import SELF_SIGNED
from support.http.threaded_server import QuietHandler, QuietServer, serving_in_thread
from support.processes.ports import free_port
from support.processes.proxies import (
    RIGHTS,
    connect,
    find_tool,
    nginx_command,
    running_program,
    substitute,
)
from support.processes.service import CARDS_ONLY_KEY, CONFIG, EXPIRED_KEY, KEY, serving
from tornado_idv.client import User
from tornado_idv.double import IdentityService

pytestmark = [pytest.mark.slow, pytest.mark.ci]

DEPLOY = Path(__file__).parents[2] / "deploy"
PROFILE = "https://profiles.example/m/"
USERS = {
    "@alice": ("4000", "Free", "Free"),
    "@zoe": ("5000", "Prémium €", "UTF-8''Pr%C3%A9mium%20%E2%82%AC"),
    "@eve": ("6000", "UTF-8''Gold", "UTF-8''UTF-8%27%27Gold"),
}
"""Card number, plan, and the plan in a header."""
LONG = "😀" * 2000
BACKEND = """\
  - name: origin
    kind: upstream
    base_url: {url}
    auth: {{kind: bearer, token: "{key}"}}
    timeout: 500ms
"""
Site = Callable[..., AbstractContextManager[int]]


class Application(QuietHandler):
    """Responds with the fields of the user; to /login with a 401 of its own."""

    def do_GET(self) -> None:  # noqa: N802
        # As a WSGI server names them.
        fields = [(name.lower().replace("_", "-"), value) for name, value in self.headers.items()]
        user = {name: value for name, value in fields if name.startswith("x-idv-") and value}
        assert len(dict(fields)) == len(fields), "each once"
        self.reply(401 if self.path == "/login" else 200, json.dumps(user).encode())

    def do_POST(self) -> None:  # noqa: N802
        self.reply(200, self.rfile.read(int(self.headers["Content-Length"])))


@contextmanager
def nginx(service: int, application: int, key: str, folder: Path) -> Iterator[int]:
    port = free_port()
    site = substitute(
        (DEPLOY / "nginx" / "verify.conf").read_text(encoding="utf-8"),
        {
            "    listen [::]:8443 ssl;\n": "",
            "    listen 8443 ssl;": f"    listen 127.0.0.1:{port} ssl;",
            "server 127.0.0.1:8080": f"server 127.0.0.1:{service}",
            "127.0.0.1:8000": f"127.0.0.1:{application}",
            "Bearer KEY": f"Bearer {key}",
        },
    )
    with running_program(nginx_command(site, folder), port, folder / "proxy.log"):
        yield port


@contextmanager
def haproxy(service: int, application: int, key: str, folder: Path) -> Iterator[int]:
    path, port, certificate = find_tool("haproxy"), free_port(), folder / "site.pem"
    certificate.write_text(SELF_SIGNED)
    config = folder / "haproxy.cfg"
    source = DEPLOY / "haproxy"
    config.write_text(
        substitute(
            (source / "verify.cfg").read_text(encoding="utf-8"),
            {
                "bind :::8443 v4v6": f"bind 127.0.0.1:{port}",
                **({} if os.geteuid() == 0 else dict.fromkeys(RIGHTS, "")),
                "/etc/haproxy/tornado-idv.pem": str(certificate),
                "127.0.0.1:8080": f"127.0.0.1:{service}",
                "IDV_KEY KEY": f"IDV_KEY {key}",
                "/etc/haproxy/verify.lua": f"{source}/verify.lua",
                "127.0.0.1:8000": f"127.0.0.1:{application}",
            },
        )
    )
    with running_program([path, "-db", "-f", str(config)], port, folder / "proxy.log"):
        yield port


SITES = pytest.mark.parametrize("site", [nginx, haproxy])


@pytest.fixture(scope="module")
def application() -> Iterator[int]:
    with serving_in_thread(QuietServer(("127.0.0.1", 0), Application)) as server:
        yield server.server_port


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("verify")
    long = {"nickname": "@long", "card_number": "7000", "plan": "a", "profile_url": PROFILE + LONG}
    (folder / "users.yaml").write_text(json.dumps({"users": [long]}, ensure_ascii=False))
    config = CONFIG.replace("port: 0,", "port: 0, verify: true,")
    config += "  - {name: long, kind: yaml, path: users.yaml}\n"
    with IdentityService.start() as directory:
        for nickname, (card, plan, _) in USERS.items():
            directory.add(User(plan, card, nickname, PROFILE + nickname[1:]))
        directory.fail("@down", status=500)
        directory.slow("@slow", 1)
        config += BACKEND.format(url=directory.url, key=directory.key)
        with serving(config, folder) as service:
            yield service.port


def send(
    port: int, member: str | None, fields: Mapping[str, str] | None = None, path: str = "/a?b=c"
) -> tuple[int, dict[str, str], bytes]:
    cookie = {} if member is None else {"Cookie": f"a=b; member={member}"}
    with connect(port) as client:
        client.request("GET", path, headers={**cookie, **(fields or {})})
        response = client.getresponse()
        received = {name.lower(): value for name, value in response.headers.items()}
        return response.status, received, response.read()


@SITES
def test_application_gets_the_user_and_nothing_that_the_client_says(
    site: Site, service: int, application: int, tmp_path: Path
) -> None:
    names = ("Plan", "Nickname", "Card-Number", "Profile-Url", "Code", "Input", "Card")
    forged = {f"X-Idv-{name}": "forged" for name in names}
    forged |= {"X_Idv_Plan": "forged", "x-idv_nickname": "forged", "X-IDV-Card_Number": "forged"}
    forged |= {"X-Idv-Plan*": "UTF-8''forged", "Authorization": "Basic eDp5", "Accept": "text/html"}
    with site(service, application, KEY, tmp_path) as port:
        for nickname, (card, _, plan) in USERS.items():
            for fields in ({}, forged):
                status, headers, body = send(port, nickname, fields)
                assert status == 200
                assert "forged" not in body.decode()
                user = json.loads(body)
                assert (user["x-idv-nickname"], user["x-idv-card-number"]) == (nickname, card)
                assert user["x-idv-profile-url"] == PROFILE + nickname[1:]
                assert user["x-idv-plan"] == plan
                assert not any(name.startswith("x-idv-") for name in headers)
        _, _, body = send(port, "@long")
        assert unquote(json.loads(body)["x-idv-profile-url"]) == f"UTF-8''{PROFILE}{LONG}"
        assert send(port, "@unknown", {"X-Idv-Input": "@alice"})[0] == 403
        assert send(port, "@alice", path="/login")[0] == 401, "the application's own"


@SITES
def test_body_is_for_the_application(
    site: Site, service: int, application: int, tmp_path: Path
) -> None:
    with site(service, application, KEY, tmp_path) as port, connect(port) as client:
        for member, status in (("@alice", 200), ("@unknown", 403), ("@alice", 200)):
            try:
                client.request("POST", "/order", b"a" * 100_000, {"Cookie": f"member={member}"})
                response = client.getresponse()
                assert (response.status, len(response.read()) == 100_000) == (status, status == 200)
            except (ConnectionError, ssl.SSLEOFError):
                assert status == 403  # it may have closed the connection before the whole body
            finally:
                client.close()


@SITES
def test_only_a_user_who_is_not_found_is_refused(
    site: Site, service: int, application: int, tmp_path: Path
) -> None:
    """A lookup that failed is a 503 with the service's Retry-After, and never a 500."""
    with site(service, application, KEY, tmp_path) as port:
        for member in ("@unknown", "alice", "@a b", None):
            status, headers, body = send(port, member)
            assert (member, status, body.strip()) == (member, 403, b"Unknown user")
            assert headers["cache-control"] == "no-store"
        for member in ("@down", "@slow"):
            status, headers, body = send(port, member)
            assert (member, status, body.strip()) == (member, 503, b"Try again")
            assert headers["cache-control"] == "no-store"
            assert int(headers["retry-after"]) >= 1
        assert send(port, "@alice")[0] == 200


@SITES
@pytest.mark.parametrize(
    "key", [EXPIRED_KEY, CARDS_ONLY_KEY, "unknown"], ids=["expired", "cards only", "unknown"]
)
def test_key_that_is_not_accepted_is_no_business_of_the_client(
    site: Site, service: int, application: int, tmp_path: Path, key: str
) -> None:
    with site(service, application, key, tmp_path) as port:
        status, headers, body = send(port, "@alice")
    assert (status, body.strip()) == (503, b"Try again")
    assert "www-authenticate" not in headers


@SITES
def test_404_of_another_route_is_no_unknown_user(
    site: Site, application: int, tmp_path: Path
) -> None:
    (tmp_path / "service").mkdir()
    with (
        serving(
            CONFIG + BACKEND.format(url="http://127.0.0.1:1", key=KEY), tmp_path / "service"
        ) as service,
        site(service.port, application, KEY, tmp_path) as port,
    ):
        assert send(port, "@unknown")[0] == 503


@SITES
def test_service_that_is_down_is_a_503(site: Site, application: int, tmp_path: Path) -> None:
    with site(1, application, KEY, tmp_path) as port:
        status, headers, body = send(port, "@alice")
    assert (status, body.strip()) == (503, b"Try again")
    assert headers.get("retry-after", "1") == "1"
