"""``GET /api/v1/key``: what a client may know of its own key."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.processes.service import (
    CARDS_ONLY_KEY,
    CONFIG,
    EXPIRED_KEY,
    FIXTURE,
    KEY,
    Client,
    serving,
)
from tornado_idv.keys.token import issue

PATH = "/api/v1/key"


def describe(client: Client, key: str) -> tuple[int, Any]:
    reply = client.send("GET", PATH, {"Host": "x", "Authorization": f"Bearer {key}"})
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize(
    ("key", "key_id", "scopes"),
    [
        (KEY, "caller", ["identify:card", "identify:url"]),
        (CARDS_ONLY_KEY, "cards", ["identify:card"]),
    ],
    ids=["all scopes", "one scope"],
)
def test_key_is_described(either: Client, key: str, key_id: str, scopes: list[str]) -> None:
    limits = {"requests": None, "misses": None}
    expected = {"status": "ok", "id": key_id, "scopes": scopes, "expires": None, "limits": limits}
    assert describe(either, key) == (200, expected)


def test_head_has_no_body(either: Client) -> None:
    fields = {"Host": "x", "Authorization": f"Bearer {KEY}", "Connection": "close"}
    reply = either.send("HEAD", PATH, fields)
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 0


def test_invalid_keys_other_methods_and_media_types_are_rejected(either: Client) -> None:
    reply = either.post(PATH, b"{}")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    for key, code in ((EXPIRED_KEY, "token_invalid_or_expired"), (KEY, "not_acceptable")):
        fields = {"Host": "x", "Authorization": f"Bearer {key}", "Accept": "text/html"}
        assert either.send("GET", PATH, fields).code == code


def test_expiry_and_limits_are_those_of_the_key(tmp_path: Path) -> None:
    """A general limit applies where the key has none of its own; one that is only logged does not.

    A request for the key is charged like any other.
    """
    token, logged_only = issue("limited"), issue("logged")
    (tmp_path / "users.yaml").write_text(FIXTURE)
    config = CONFIG.replace(
        "backends:\n",
        f"    - {{id: limited, token: {token}, expires: 2099-12-31T23:00:00+01:00,"
        " limits: {requests: 2/hour}}\n"
        f"    - {{id: logged, token: {logged_only},"
        " limits: {misses: {rate: 5/10 minutes, log_only: true}}}\n"
        "limits: {misses: 100/minute}\n"
        "backends: [{name: users, kind: yaml, path: users.yaml}]\n",
    )
    with serving(config, tmp_path) as service:
        client = Client(service.port)
        assert describe(client, token) == (
            200,
            {
                "status": "ok",
                "id": "limited",
                "scopes": ["identify:card", "identify:url"],
                "expires": "2099-12-31T22:00:00.000Z",
                "limits": {"requests": "2/hour", "misses": "100/minute"},
            },
        )
        _, other = describe(client, logged_only)
        assert other["limits"] == {"requests": None, "misses": None}
        assert [describe(client, token)[0] for _ in range(2)] == [200, 429]
