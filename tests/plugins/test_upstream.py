"""An upstream that responds as it should: another instance of this service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from idv_upstream.backend import UpstreamBackend
from tornado_idv import ByCard, ByNickname, Query, Unavailable, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.registry import open_backends
from tornado_idv.testing import ALICE, BackendConformance, MakeBackend, make_backend

TOKEN = "idv_shop_Zm9v+/=="
NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}


class Identify(RequestHandler):
    """Responds for the given users as an instance of this service does."""

    def initialize(self, users: Sequence[User], seen: list[HTTPServerRequest]) -> None:
        self.users = users
        self.seen = seen

    def post(self, by: str) -> None:
        self.seen.append(self.request)
        self.set_header("X-IDV-Request-ID", self.request.headers["X-IDV-Request-ID"])
        self.set_header("Cache-Control", "no-store")  # as to every client, which is not followed
        asked = json.loads(self.request.body)
        for user in self.users:
            if asked == ({"input": f"@{user.nickname}"} if by == "url" else card(user)):
                self.finish(record(user))
                return
        self.set_status(404)
        self.finish(NOT_FOUND)


def card(user: User) -> dict[str, str]:
    return {"card_number": user.card_number}


def record(user: User) -> dict[str, Any]:
    return {
        "status": "ok",
        "plan": user.plan,
        "card_number": user.card_number,
        "nickname": f"@{user.nickname}",
        "profile_url": profile_url(user),
    }


def profile_url(user: User) -> str:
    return user.profile_url or f"https://profiles.example/m/{user.nickname}"


class Upstreams:
    """Starts instances on free ports, and records their requests."""

    def __init__(self, base_dir: Path) -> None:
        self.seen: list[HTTPServerRequest] = []
        self.servers: list[HTTPServer] = []
        self._base_dir = base_dir

    def __call__(self, users: Sequence[User], **options: Any) -> AnyBackend:
        arguments = {"users": users, "seen": self.seen}
        server = HTTPServer(
            Application([(r"/below/api/v1/identify/(url|card)", Identify, arguments)])
        )
        (socket,) = bind_sockets(0, "127.0.0.1")
        server.add_socket(socket)
        self.servers.append(server)
        address = f"http://127.0.0.1:{socket.getsockname()[1]}/below/"
        return make_backend(
            UpstreamBackend, self._base_dir, base_url=address, timeout="5s", **options
        )


@pytest.fixture
def upstreams(io_loop: Any, tmp_path: Path) -> Iterator[Upstreams]:
    started = Upstreams(tmp_path)
    yield started
    for server in started.servers:
        server.stop()
        io_loop.run_sync(server.close_all_connections)


class TestConformance(BackendConformance):
    """An upstream is a backend like any other."""

    holds_duplicates = False
    holds_at = False
    folds_stored = False

    users = tuple(
        User(user.plan, user.card_number, user.nickname, profile_url(user))
        for user in BackendConformance.users
    )

    @pytest.fixture
    def make_backend(self, upstreams: Upstreams) -> MakeBackend:
        return upstreams

    @pytest.fixture
    def failing_backend(self, unused_port: int, tmp_path: Path) -> AnyBackend:
        return make_backend(
            UpstreamBackend, tmp_path, base_url=f"http://127.0.0.1:{unused_port}", timeout="5s"
        )


@pytest.fixture
def unused_port() -> int:
    (socket,) = bind_sockets(0, "127.0.0.1")
    with socket:
        port: int = socket.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("query", "path", "body"),
    [
        (ByNickname("alice"), "/below/api/v1/identify/url", b'{"input": "@alice"}'),
        (ByNickname('"\\\n&'), "/below/api/v1/identify/url", b'{"input": "@\\"\\\\\\n&"}'),
        (ByCard("0012"), "/below/api/v1/identify/card", b'{"card_number": "0012"}'),
    ],
    ids=["nickname", "hostile nickname", "card"],
)
async def test_request_to_another_instance_has_no_other_headers(
    upstreams: Upstreams, query: Query, path: str, body: bytes
) -> None:
    """The query is encoded in the body, and cannot reach the path or the headers."""
    backend = upstreams([], auth={"kind": "bearer", "token": TOKEN})
    async with open_backends([backend]):
        assert await backend.find(query) is None
    (request,) = upstreams.seen
    assert (request.method, request.uri, request.body) == ("POST", path, body)
    assert sorted(request.headers.get_all()) == [
        ("Accept", "application/json"),
        ("Accept-Encoding", "identity"),
        ("Authorization", f"Bearer {TOKEN}"),
        ("Content-Length", str(len(body))),
        ("Content-Type", "application/json"),
        ("Host", request.host),
        ("User-Agent", "tornado-idv"),
        ("X-Idv-Request-Id", request.headers["X-IDV-Request-ID"]),
    ]


async def test_no_credential_is_sent_without_one_configured(
    upstreams: Upstreams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proxies and the `.netrc` of the environment are ignored."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login another password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    backend = upstreams([ALICE])
    async with open_backends([backend]):
        assert await backend.find(ByCard(ALICE.card_number)) is not None
    assert "Authorization" not in upstreams.seen[0].headers


async def test_upstream_may_start_after_this_service(
    upstreams: Upstreams, unused_port: int, tmp_path: Path
) -> None:
    """Opening sends no request, and the first lookup after it started finds it."""
    address = f"http://127.0.0.1:{unused_port}/below"
    backend = make_backend(UpstreamBackend, tmp_path, base_url=address, timeout="5s")
    async with open_backends([backend]):
        with pytest.raises(Unavailable, match="connection failed"):
            await backend.find(ByNickname("alice"))
        upstreams([ALICE])
        upstreams.servers[0].listen(unused_port, "127.0.0.1")
        assert await backend.find(ByNickname("alice")) is not None
