"""Lookups for proxies: status and header fields say all, and never more than is known."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from support.http.in_process import ALICE, Harness, harnesses
from support.processes.service import (
    CARDS_ONLY_KEY,
    CONFIG,
    EXPIRED_KEY,
    KEY,
    USERS,
    Client,
    Reply,
    serving,
)

VERIFY = "/api/v1/verify"
PLANS = {
    "spaces": ("Free for all", None),
    "accents": ("Prémium €", "UTF-8''Pr%C3%A9mium%20%E2%82%AC"),
    "Latin-1": ("Café", "UTF-8''Caf%C3%A9"),
    "encoded": ("utf-8''Gold", "UTF-8''utf-8%27%27Gold"),
    "blank-end": ("Gold ", "UTF-8''Gold%20"),
    "blank-start": (" Gold", "UTF-8''%20Gold"),
    "percent": ('50%; a="b", c', None),
    "emoji": ("😀" * 256, "UTF-8''" + "%F0%9F%98%80" * 256),
}
FIXTURE = "users:\n" + "".join(
    f"  - {{nickname: '@{name}', card_number: '4{at}', plan: {text}}}\n"
    for at, (name, (plan, _)) in enumerate(PLANS.items())
    for text in [json.dumps(plan, ensure_ascii=False)]
)
LONG_URL = "https://profiles.example/" + "é" * 2000
FIXTURE += f"""\
  - {{nickname: '@alice', card_number: '0012', plan: Free, profile_url: '{LONG_URL}'}}
  - {{nickname: '@bob', card_number: '5', plan: Free}}
"""
ENABLED = CONFIG.replace("port: 0,", "port: 0, verify: true,")
INPUT, CARD = {"X-Idv-Input": "@bob"}, {"X-Idv-Card": "5"}
AUTHORIZED = {"Host": "x", "Authorization": f"Bearer {KEY}", **INPUT}
REJECTED = {
    "nothing": ({}, "identifier_header"),
    "both": ({**INPUT, **CARD}, "identifier_header"),
    "two in one": ({"X-Idv-Input": "@bob, @bob"}, "nickname_invalid"),
    "not ASCII": ({"X-Idv-Input": "@bób"}, "nickname_invalid"),
    "RFC 8187": ({"X-Idv-Input": "UTF-8''%40bob"}, "not_an_identifier"),
    "extended name": ({"X-Idv-Input*": "UTF-8''%40bob"}, "identifier_header"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify")
    (path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with serving(ENABLED + USERS, folder) as service:
        yield Client(service.port)


def verify(
    client: Client,
    fields: dict[str, str],
    key: str | None = KEY,
    path: str = VERIFY,
    method: str = "GET",
) -> Reply:
    headers = {"Host": "x", **fields}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    reply = client.send(method, path, headers)
    assert (reply.body, reply.headers.get("content-length")) == (b"", "0")
    assert "content-type" not in reply.headers
    assert reply.headers["cache-control"] == "no-store"
    if reply.status != 200:
        assert user_fields(reply) == {}
    return reply


def user_fields(reply: Reply) -> dict[str, str]:
    """Return the fields that name a user."""
    return {
        name: value
        for name, value in reply.headers.items()
        if name.startswith("x-idv-") and name != "x-idv-code"
    }


@pytest.mark.parametrize("path", [VERIFY, f"{VERIFY}?a=b", f"{VERIFY}/", f"{VERIFY}/cart%20/1?a=b"])
@pytest.mark.parametrize("fields", [INPUT, CARD, {"X-Idv-Input": "https://profiles.example/m/bob"}])
def test_user_who_is_found_is_in_header_fields(
    client: Client, fields: dict[str, str], path: str
) -> None:
    for _ in range(2):  # past the cache, and from it
        reply = verify(client, fields, path=path)
        assert (reply.status, reply.headers["x-idv-code"]) == (200, "ok")
        assert user_fields(reply) == {
            "x-idv-plan": "Free",
            "x-idv-card-number": "5",
            "x-idv-nickname": "@bob",
            "x-idv-profile-url": "https://profiles.example/m/bob",
        }


@pytest.mark.parametrize("name", PLANS)
def test_value_is_itself_or_encoded(client: Client, name: str) -> None:
    plan, encoded = PLANS[name]
    value = verify(client, {"X-Idv-Input": f"@{name}"}).headers["x-idv-plan"]
    assert value == (encoded or plan)
    charset, _, text = value.partition("''")
    assert (unquote(text) if charset == "UTF-8" else value) == plan


def test_longest_profile_url_arrives_whole(client: Client) -> None:
    value = verify(client, {"X-Idv-Card": "0012"}).headers["x-idv-profile-url"]
    assert unquote(value.removeprefix("UTF-8''")) == LONG_URL
    assert "/" not in value  # which RFC 8187 excludes, as it does others


@pytest.mark.parametrize("name", REJECTED)
def test_request_without_one_valid_identifier_is_422(client: Client, name: str) -> None:
    fields, reason = REJECTED[name]
    reply = verify(client, fields)
    assert (reply.status, reply.headers["x-idv-code"]) == (422, "invalid_format")
    assert reply.headers["x-error-reason"] == reason


def test_field_that_is_sent_twice_is_rejected(client: Client) -> None:
    """The client of the proxy may have sent one of them."""
    head = f"GET {VERIFY} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    fields = "X-Idv-Input: @bob\r\nx-idv-input: @bob\r\n"
    (reply,) = client.raw(f"{head}{fields}\r\n".encode())
    assert (reply.status, reply.headers["x-error-reason"]) == (422, "identifier_header")


def test_user_who_is_not_found_is_404(client: Client) -> None:
    for fields in ({"X-Idv-Input": "@nobody"}, {"X-Idv-Card": "99"}):
        reply = verify(client, fields)
        assert (reply.status, reply.headers["x-idv-code"]) == (404, "not_found")


@pytest.mark.parametrize("key", [None, EXPIRED_KEY, "unknown"], ids=["none", "expired", "unknown"])
def test_key_that_is_not_valid_is_401(client: Client, key: str | None) -> None:
    reply = verify(client, INPUT, key)
    assert (reply.status, reply.headers["x-idv-code"]) == (401, "token_invalid_or_expired")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "x-error-reason" not in reply.headers


def test_scope_is_that_of_the_identifier(client: Client) -> None:
    reply = verify(client, INPUT, CARDS_ONLY_KEY)
    assert (reply.status, reply.headers["x-idv-code"]) == (403, "insufficient_scope")
    assert reply.headers["www-authenticate"].endswith('scope="identify:url"')
    assert verify(client, CARD, CARDS_ONLY_KEY).status == 200


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "TRACE", "PROPFIND", "X"])
def test_method_and_fields_of_the_proxys_client_do_not_matter(client: Client, method: str) -> None:
    fields = {**INPUT, "Accept": "text/html", "Content-Type": "text/plain", "X-Idv-Code": "x"}
    fields |= {"Connection": "Upgrade", "Upgrade": "websocket"}
    reply = verify(client, fields, method=method)
    assert (reply.status, reply.headers["x-idv-nickname"]) == (200, "@bob")
    assert verify(client, {"X-Idv-Input": "@nobody"}, method=method).status == 404


def test_request_that_is_rejected_before_its_route_has_no_code_of_a_user(client: Client) -> None:
    for path, body, status in ((VERIFY + "/a" * 1100, b"", 414), (VERIFY, b"a" * 20_000, 413)):
        reply = client.send("POST", path, AUTHORIZED, body)
        assert (reply.status, reply.headers.get("x-idv-code")) == (status, None)
        assert reply.code is not None


def test_route_is_off_by_default(folder: Path) -> None:
    """Its 404 has no code of ours, so that no proxy takes it for that of a user."""
    with serving(CONFIG + USERS, folder) as service:
        for path in (VERIFY, f"{VERIFY}/"):
            reply = Client(service.port).send("GET", path, AUTHORIZED)
            assert (reply.status, reply.code) == (404, "no_such_route")
            assert "x-idv-code" not in reply.headers


def test_paths_beside_the_route_are_none(client: Client) -> None:
    for path in (f"{VERIFY}x", f"{VERIFY}-other/", "/verify", f"/x{VERIFY}", "/api/v1/"):
        assert client.send("GET", path, AUTHORIZED).code == "no_such_route"


def test_route_follows_the_base_path(folder: Path) -> None:
    config = ENABLED.replace("port: 0,", "port: 0, base_path: /x.y,") + USERS
    with serving(config, folder) as service:
        assert verify(Client(service.port), INPUT, path=f"/x.y{VERIFY}").status == 200
        assert Client(service.port).send("GET", f"/x-y{VERIFY}", AUTHORIZED).code == "no_such_route"


DOWN = f"{USERS}  - {{name: down, kind: upstream, base_url: 'http://127.0.0.1:1'}}\n"
NO_CANARY = USERS.replace("}", ", canary: {nickname: '@canary'}}")


@pytest.mark.parametrize("backends", [DOWN, NO_CANARY], ids=["down", "canary"])
def test_nothing_is_not_found_while_a_backend_fails(folder: Path, backends: str) -> None:
    """Or while its canary is missing."""
    with serving(ENABLED + backends, folder) as service:
        client = Client(service.port)
        for _ in range(2):
            reply = verify(client, {"X-Idv-Input": "@nobody"})
            assert (reply.status, reply.headers["x-idv-code"]) == (503, "backend_unavailable")
            assert int(reply.headers["retry-after"]) >= 1
        assert verify(client, INPUT).status == 200


def test_limits_count_requests_and_misses(folder: Path) -> None:
    """Also of an identifier that is missing or not valid."""
    limits = "limits: {requests: 6/hour, misses: 3/hour}\n"
    with serving(limits + ENABLED + USERS, folder) as service:
        client = Client(service.port)
        requests = ({"X-Idv-Input": "@nobody"}, {"X-Idv-Input": "bad"}, {}, INPUT)
        replies = [verify(client, fields) for fields in requests]
        assert [each.status for each in replies] == [404, 422, 422, 429]
        assert replies[-1].headers["ratelimit-policy"] == '"misses";q=3;w=3600'
        assert replies[-1].headers["x-idv-code"] == "rate_limited"
        assert int(replies[-1].headers["retry-after"]) >= 1
    with serving(limits + ENABLED + USERS, folder) as service:
        client = Client(service.port)
        assert [verify(client, INPUT).status for _ in range(7)] == [200] * 6 + [429]


def request(**fields: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    head = [f"GET {VERIFY}/@path HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


@pytest.fixture
def harness() -> Iterator[Harness]:
    with harnesses() as make:
        yield make()


def test_log_names_the_route_and_nothing_of_the_request(harness: Harness) -> None:
    for text in ("@alice", "@nobody", "no handle"):
        harness.ask(request(X_Idv_Input=text))
    harness.access()
    lines = [json.loads(line) for line in "".join(harness.logged).splitlines()]
    assert [(each["method"], each["route"], each["status"], each["key"]) for each in lines] == [
        ("GET", "verify", status, "caller") for status in (200, 404, 422)
    ]
    for text in ("alice", "nobody", "no handle", "path", ALICE.card_number):
        assert text not in "".join(harness.logged)


def test_stale_answer_is_served_in_an_outage(harness: Harness) -> None:
    wanted = request(X_Idv_Input="@alice")
    assert harness.ask(wanted).statuses == [200]
    harness.users.down = True
    harness.loop.forward(400)  # more than the TTL
    client = harness.ask(wanted)
    assert client.statuses == [200]
    assert b"X-Idv-Nickname: @alice\r\n" in bytes(client.socket.sent)
    assert harness.access()[-1].count('"cache":"stale"') == 1
    assert harness.ask(request(X_Idv_Input="@nobody")).statuses == [503]
