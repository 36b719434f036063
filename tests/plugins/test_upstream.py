"""Another instance of this service as an upstream, and responses that answer no lookup."""

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from idv_upstream.backend import UpstreamBackend
from support.databases.upstream_backends import PLAIN, upstream
from support.databases.upstream_backends import RECORD as PLAIN_RECORD
from support.http.live_directory import live_directory, record
from support.http.scripted_server import OWN_ID, REQUEST_ID, header, http, serving
from support.processes.loggers import log_everything
from support.processes.ports import free_port
from tornado_idv import Broken, ByCard, ByNickname, LookupFailed, Query, Unavailable, User
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.kit.testing import ALICE, BackendConformance, MakeBackend, make_backend
from tornado_idv.registry import opened_backend

TOKEN = "idv_shop_Zm9v+/=="
ECHO = f"X-IDV-Request-ID: {OWN_ID.decode()}"
ABSENT = b'{"status": "error", "code": "not_found"}'
NOT_FOUND = http(404, ABSENT, ECHO)
ALICE_WITH_URL = replace(ALICE, profile_url=record(ALICE)["profile_url"])


def upstream_at(address: str, **options: Any) -> AnyBackend:
    return make_backend(UpstreamBackend, Path(), base_url=address, timeout="5s", **options)


class TestConformance(BackendConformance):
    holds_duplicates = False
    holds_at = False
    folds_stored = False

    users = tuple(
        User(user.plan, user.card_number, user.nickname, record(user)["profile_url"])
        for user in BackendConformance.users
    )

    @pytest.fixture
    def make_backend(self) -> Iterator[MakeBackend]:
        with ExitStack() as stack:

            def make(users: Sequence[User]) -> AnyBackend:
                return upstream_at(stack.enter_context(live_directory(*users)).url)

            yield make

    @pytest.fixture
    def failing_backend(self) -> AnyBackend:
        return upstream_at(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("query", "path", "body"),
    [
        (ByNickname("alice"), "/below/api/v1/identify/url", b'{"input": "@alice"}'),
        (ByNickname('"\\\n&'), "/below/api/v1/identify/url", b'{"input": "@\\"\\\\\\n&"}'),
        (ByCard("0012"), "/below/api/v1/identify/card", b'{"card_number": "0012"}'),
    ],
)
async def test_request_to_another_instance_has_no_other_headers(
    query: Query, path: str, body: bytes
) -> None:
    """The query is encoded in the body, and cannot reach the path or the headers."""
    auth = {"kind": "bearer", "token": TOKEN}
    async with serving(NOT_FOUND) as server:
        backend = upstream_at(f"{server.address}/below/", auth=auth)
        async with opened_backend(backend):
            assert await backend.find(query) is None
    (request,) = server.requests
    head, _, sent = request.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert (line, sent) == (f"POST {path} HTTP/1.1", body)
    assert sorted(fields) == [
        "Accept-Encoding: identity",
        "Accept: application/json",
        f"Authorization: Bearer {TOKEN}",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        f"Host: 127.0.0.1:{server.port}",
        "User-Agent: tornado-idv",
        f"X-IDV-Request-ID: {header(request, 'X-IDV-Request-ID')}",
    ]


CANARY = {"nickname": "@alice", "max_age": "5s"}


@pytest.mark.parametrize("own", [None, "max-age=60"])
async def test_canary_is_looked_up_past_caches(own: str | None) -> None:
    """Those on the way, and that of another instance; other users are not."""
    request = {"url": "/{nickname}", "headers": {"cache-control": own}}
    options = {"by_nickname": request, "response": PLAIN} if own else {}
    found = http(200, json.dumps(record(ALICE) | PLAIN_RECORD).encode(), ECHO)
    async with upstream(found, canary=CANARY | {"max_age": "0s"}, **options) as (server, backend):
        await backend.find_canary(ByNickname("alice"))
        await backend.find(ByNickname("alice"))
    sent = [
        [header(each, name) for name in ("Cache-Control", "X-IDV-Past-Cache", "Content-Type")]
        for each in server.requests
    ]
    kind = None if own else "application/json"
    assert sent == [["no-cache", "1", kind], [own, None, kind]]


@pytest.mark.parametrize(
    ("age", "max_age", "is_evidence"),
    [("0", 0, True), ("5", 5, True), ("6", 5, False), ("1", 0, False), ("²", 5, False)],
)
async def test_response_of_a_cache_is_evidence_while_it_is_young(
    age: str, max_age: int, *, is_evidence: bool
) -> None:
    """For the canary; that of another user is read in any case."""
    headers = (ECHO, f"Age: {age}", "Cache-Control: no-store")
    found = http(200, json.dumps(record(ALICE)).encode(), *headers)
    canaries = [{**CANARY, "max_age": f"{max_age}s"}, {"card_number": "40", "max_age": "60s"}]
    async with upstream(found, canary=canaries) as (_, backend):
        assert await backend.find(ByNickname("alice")) == ALICE_WITH_URL
        if is_evidence:
            assert await backend.find_canary(ByNickname("alice")) == ALICE_WITH_URL
        else:
            with pytest.raises(Unavailable, match="an Age above the max_age") as failed:
                await backend.find_canary(ByNickname("alice"))
            assert not failed.value.counts_against_breaker


MAGPIE = User("magpie-plan", "40009998887776", "magpie-nick")
RECORD = record(MAGPIE)
HTML = b"<!doctype html><title>magpie-nick</title>"


def found(**members: Any) -> bytes:
    return http(200, json.dumps(RECORD | members).encode())


BAD_ANSWERS = {
    "HTML 200": (http(200, HTML, kind="text/html"), Broken, "not application/json"),
    "no route": (http(404, b'{"status": "error"}'), Broken, "not_known_when is false for"),
    "another 404": (http(404, b'{"code": "not_found"}'), Broken, "not_known_when is false for"),
    "410": (http(410, ABSENT), Broken, "unexpected status 410"),
    "not_found 200": (http(200, ABSENT), Broken, "not a record"),
    "204": (b"HTTP/1.1 204 Canary\r\n\r\n", Broken, "unexpected status 204"),
    "302": (http(302, b"", "Location: /magpie"), Broken, "status 302); redirects"),
    "another user": (found(nickname="@magpie-2", card_number="4"), Broken, "for a user other than"),
    "nickname without @": (found(nickname="magpie-nick"), Broken, "wrong record: nickname"),
    "no profile_url": (found(profile_url=None), Broken, "wrong record: profile_url"),
    "illegal cookie": (http(503, b"", "Set-Cookie: magpie,x=1"), Unavailable, "status 503"),
}


@pytest.mark.parametrize(("answer", "kind", "reason"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_wrong_response_is_reported_with_its_cause_and_without_its_content(
    answer: bytes, kind: type[LookupFailed], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No log record of any library at any level has a part of the query or the response."""
    log_everything(caplog)
    auth = {"kind": "bearer", "token": "magpie-token+/="}
    for query in (ByNickname(MAGPIE.nickname), ByCard(MAGPIE.card_number)):
        async with upstream(answer, auth=auth) as (server, backend):
            with pytest.raises(kind) as caught:
                await backend.find(query)
        assert reason in caught.value.reason
        reported = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        for private in ("magpie", MAGPIE.card_number):
            assert private not in reported + caplog.text
        assert len(server.requests) == (2 if "status 503" in caught.value.reason else 1)


# A second response to an earlier request, on a connection that is kept, answers no lookup

LATE = "X-IDV-Request-ID: earlier"
MAPPED: dict[str, Any] = {"by_nickname": {"url": "/?q={nickname}"}, "response": PLAIN}
UNCHECKED: dict[str, Any] = {
    **MAPPED,
    "response": {"plan": "plan", "card_number": "card", "check_echo": False},
}
TWO_STEPS: dict[str, Any] = {
    "by_nickname": {"url": "/ids?q={nickname}", "then": {"url": "/?q={id}"}},
    "response": {**PLAIN, "id": "card"},
}


def response(nickname: str, *headers: str) -> bytes:
    """A response with a user, to a request of another instance or of ``MAPPED``."""
    user = {"status": "ok", "plan": nickname, "card_number": "40", "nickname": f"@{nickname}"}
    user |= {"card": "40", "login": nickname, "profile_url": f"https://x.example/m/{nickname}"}
    return http(200, json.dumps(user).encode(), *headers)


async def plan_of(backend: Any, nickname: str) -> str | None:
    found = await backend.find(ByNickname(nickname))
    assert isinstance(found, User | None)
    return found.plan if found else None


@pytest.mark.parametrize("options", [{}, MAPPED, UNCHECKED, TWO_STEPS], ids=str)
@pytest.mark.parametrize("stray", [response("alice", LATE), http(404, ABSENT, LATE)], ids=len)
async def test_second_response_does_not_answer_the_next_lookup(
    options: dict[str, Any], stray: bytes
) -> None:
    async with upstream(response("alice", ECHO), **options) as (server, backend):
        assert await plan_of(backend, "alice") == "alice"
        server.say(stray, response("bob", ECHO))
        assert await plan_of(backend, "bob") == "bob"
    ids = {header(each, "X-IDV-Request-ID") for each in server.requests} - {None}
    assert len(ids) == (len(server.requests) if options == {} else 0)


async def test_ids_of_two_processes_differ() -> None:
    """A proxy may confuse their responses, too."""
    ids = set()
    for _ in range(2):
        async with upstream(NOT_FOUND) as (server, backend):
            await backend.find(ByNickname("alice"))
        ids.add(header(server.requests[0], "X-IDV-Request-ID"))
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("echoes", "more", "requests"),
    [
        (0, {}, 2),
        (1, {"echo_header": "X-Request-ID"}, 1),
        (1, {"echo_header": "X-Other"}, 2),
        (2, {"echo_header": "X-Request-ID"}, 2),
        (0, {"confirm_not_found": False}, 1),
    ],
)
async def test_requests_for_a_user_who_does_not_exist(
    echoes: int, more: dict[str, Any], requests: int
) -> None:
    """One on the kept connection; one more where nothing shows that its response belongs to it."""
    absent = http(404, ABSENT, *[f"X-Request-ID: {REQUEST_ID.decode()}"] * echoes)
    async with upstream(absent, **MAPPED, **more) as (server, backend):
        assert await plan_of(backend, "carol") is None
        assert len(server.requests) == 1
        server.say(response("bob"))
        assert await plan_of(backend, "bob") == "bob"
        assert len(server.requests) == 2
        server.say(absent)
        assert await plan_of(backend, "carol") is None
    assert len(server.requests) == 2 + requests
