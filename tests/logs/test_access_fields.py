"""What the access log of a real process tells about each kind of response."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes.process import ServiceProcess, eventually, running
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY, KEY, Client, write_config
from tornado_idv.keys.token import issue

pytestmark = pytest.mark.slow

EARLY_KEY = issue("early")
USERS = ", ".join(
    f'{{nickname: {name}, card_number: "{card}", plan: Free}}'
    for card, name in enumerate(("alice", "carol"))
)
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0, trusted_proxies: [127.0.0.1]}}
auth:
  keys:
    - {{id: caller, token: {KEY}}}
    - {{id: expired, token: {EXPIRED_KEY}, expires: 2020-01-01T00:00:00Z}}
    - {{id: early, token: {EARLY_KEY}, not_before: 2999-01-01T00:00:00Z}}
    - {{id: cards, token: {CARDS_ONLY_KEY}, scopes: [identify:card]}}
logging: {{level: info, format: json, ids: hash}}
backends:
  - {{name: users, kind: yaml, path: users.yaml}}
  - {{name: gone, kind: upstream, base_url: 'http://127.0.0.1:1', match: '@gone'}}
"""
URL = "/api/v1/identify/url"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Knows alice, and cannot reach one backend."""
    folder = tmp_path_factory.mktemp("fields")
    (folder / "users.yaml").write_text(f"users: [{USERS}]\n")
    with running(write_config(folder, CONFIG)) as service:
        yield service


def why(record: dict[str, Any]) -> dict[str, Any]:
    """Some fields of a line."""
    return {name: record[name] for name in WHY if name in record}


def ask(
    service: ServiceProcess, nickname: str, key: str | None = KEY, path: str = URL
) -> dict[str, Any]:
    """The line of one request."""
    headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": "203.0.113.5"}
    body = json.dumps({"input": f"@{nickname}"}).encode()
    began = time.monotonic()
    request_id = Client(service.port).post(path, body, headers).headers["x-request-id"]
    found: list[dict[str, Any]] = []

    def is_logged() -> bool:
        found[:] = [
            record
            for line in service.read_log().splitlines(keepends=True)
            if line.endswith("\n") and (record := json.loads(line)).get("request_id") == request_id
        ]
        return bool(found)

    eventually(is_logged)
    (record,) = found
    assert (record["client"], record["method"]) == ("203.0.113.5", "POST")
    assert 0 <= record["ms"] < 1000 * (time.monotonic() - began)
    return record


WHY = ("status", "key", "code", "backend", "reason")
CODE = "token_invalid_or_expired"


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (KEY, {"status": 200, "key": "caller", "backend": "users"}),
        (EXPIRED_KEY, {"status": 401, "key": "expired", "code": CODE, "reason": "expired"}),
        (EARLY_KEY, {"status": 401, "key": "early", "code": CODE, "reason": "not valid yet"}),
        (issue("caller"), {"status": 401, "key": None, "code": CODE, "reason": "unknown"}),
        ("short", {"status": 401, "key": None, "code": CODE, "reason": "unknown"}),
        ("ä", {"status": 401, "key": None, "code": CODE, "reason": "malformed"}),
        (CARDS_ONLY_KEY, {"status": 403, "key": "cards", "code": "insufficient_scope"}),
    ],
    ids=["good", "expired", "early", "unknown", "short", "malformed", "without scope"],
)
def test_a_known_key_is_named_also_where_it_is_refused(
    service: ServiceProcess, key: str, fields: dict[str, Any]
) -> None:
    assert why(ask(service, "alice", key)) == fields


@pytest.mark.parametrize(
    ("nickname", "path", "fields"),
    [
        ("bob", URL, {"status": 404, "key": "caller", "code": "not_found"}),
        (
            "a b",
            URL,
            {
                "status": 422,
                "key": "caller",
                "code": "invalid_format",
                "reason": "nickname_invalid",
            },
        ),
        ("alice", "/elsewhere", {"status": 404, "key": None, "code": "no_such_route"}),
    ],
    ids=["nobody", "a wrong nickname", "no route"],
)
def test_every_error_has_its_code(
    service: ServiceProcess, nickname: str, path: str, fields: dict[str, Any]
) -> None:
    for _ in range(3):  # the later ones skip the handlers where they can
        assert why(ask(service, nickname, path=path)) == fields


def test_an_unreachable_backend_is_named_with_the_reason(service: ServiceProcess) -> None:
    line = ask(service, "gone")
    assert (line["status"], line["code"]) == (503, "backend_unavailable")
    assert (line["cache"], line["backend"], line["reason"]) == ("miss", "gone", "connection failed")
    assert re.fullmatch("[0-9a-f]{16}", line["subject"])


def test_line_of_a_lookup_names_cache_backend_and_subject(service: ServiceProcess) -> None:
    """Also where the fast path responds, to the third request."""
    first, *others = [ask(service, "carol") for _ in range(4)]
    assert (first["cache"], first["backend"]) == ("miss", "users")
    assert re.fullmatch("[0-9a-f]{16}", first["subject"])
    for line in others:
        assert (line["cache"], line["backend"]) == ("hit", "users")
        assert line["subject"] == first["subject"]
    assert ask(service, "dave")["subject"] != first["subject"]


@pytest.mark.parametrize(
    ("nickname", "key"), [("a b", KEY), ("alice", EXPIRED_KEY)], ids=["format", "key"]
)
def test_line_of_a_rejected_request_has_no_lookup(
    service: ServiceProcess, nickname: str, key: str
) -> None:
    assert not {"cache", "backend", "subject"} & {*ask(service, nickname, key)}
