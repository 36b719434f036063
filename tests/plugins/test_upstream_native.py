"""The API of this service as a mapping like any other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idv_upstream.options import UpstreamOptions
from idv_upstream.request.template import Request
from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import Outcome, outcome
from tornado_idv import Broken, ByCard, ByNickname, User

QUERIES = (ByNickname("alice"), ByCard("0012"))
RECORD = {
    "status": "ok",
    "plan": "Free",
    "card_number": "0012",
    "nickname": "@alice",
    "profile_url": "https://profiles.example/m/alice",
}
NOT_FOUND = {"status": "error", "code": "not_found", "message": "User not found"}
OPTIONS = UpstreamOptions.model_validate(
    {"name": "crm", "kind": "upstream", "base_url": "http://x"}
)
MAPPER = ResponseMapper(OPTIONS.mapping)


@pytest.mark.parametrize("nickname", ["alice", '"\\\n&'], ids=["plain", "hostile"])
def test_nickname_is_requested(nickname: str) -> None:
    """The request changes nothing, so it is repeatable."""
    request = OPTIONS.requests[ByNickname].template("").render(ByNickname(nickname))
    body = json.dumps({"input": f"@{nickname}"}).encode()
    kind = {"Content-Type": "application/json"}
    assert request == Request("POST", "/api/v1/identify/url", kind, body, repeatable=True)


def test_card_number_is_requested() -> None:
    """As text, with leading zeros."""
    request = OPTIONS.requests[ByCard].template("").render(ByCard("0012"))
    kind = {"Content-Type": "application/json"}
    body = b'{"card_number": "0012"}'
    assert request == Request("POST", "/api/v1/identify/card", kind, body, repeatable=True)


@pytest.mark.parametrize("more", [{}, {"surprise": [1]}], ids=["as today", "of a newer version"])
def test_record_of_a_user_is_read(more: dict[str, Any]) -> None:
    """Unknown members are ignored."""
    user = User("Free", "0012", "alice", "https://profiles.example/m/alice")
    for query in QUERIES:
        assert MAPPER.user(query, {**RECORD, **more}) == user


WRONG: dict[str, tuple[Any, str]] = {
    "not found": (NOT_FOUND, "true or false, not a record"),
    "null": (None, "not a record"),
    "text": ("canary", "not a record"),
    "list": ([RECORD], "not a record"),
    "status": ({**RECORD, "status": "error"}, "not a record"),
    "status true": ({**RECORD, "status": True}, "not a record"),
    "another": ({**RECORD, "nickname": "@canary", "card_number": "1"}, "another user"),
    "nickname without @": ({**RECORD, "nickname": "alice"}, "nickname"),
    "nickname of nothing": ({**RECORD, "nickname": "@"}, "nickname"),
    "nickname a number": ({**RECORD, "nickname": 1}, "nickname"),
    "nickname with blank": ({**RECORD, "nickname": "@alice "}, "nickname"),
    "card a number": ({**RECORD, "card_number": 12}, "card_number"),
    "card of other digits": ({**RECORD, "card_number": "٤٠"}, "card_number"),
    "card with newline": ({**RECORD, "card_number": "0012\n"}, "card_number"),
    "plan null": ({**RECORD, "plan": None}, "plan"),
    "plan half a pair": ({**RECORD, "plan": "\ud800"}, "plan"),
    "profile_url null": ({**RECORD, "profile_url": None}, "profile_url"),
    "profile_url empty": ({**RECORD, "profile_url": ""}, "profile_url"),
    **{
        f"no {name}": ({key: RECORD[key] for key in RECORD if key != name}, name)
        for name in ("plan", "card_number", "nickname", "profile_url")
    },
}


@pytest.mark.parametrize(("document", "said"), WRONG.values(), ids=WRONG.keys())
def test_any_other_response_is_broken(document: Any, said: str) -> None:
    """For either query."""
    for query in QUERIES:
        with pytest.raises(Broken) as caught:
            MAPPER.user(query, document)
        assert said in caught.value.reason
        assert "canary" not in caught.value.reason


def test_only_the_record_for_not_found_is_not_found() -> None:
    """A 404 with anything else is another service, or a wrong address."""
    assert MAPPER.is_not_known(NOT_FOUND)
    documents: list[Any] = [None, [], {}, RECORD, {**NOT_FOUND, "code": "no_such_route"}, "canary"]
    for document in documents:
        assert not MAPPER.is_not_known(document)
    assert not MAPPER.is_not_known({"code": "not_found"})


def test_only_404_is_not_found() -> None:
    """The other statuses that mean it elsewhere are never sent."""
    known = {status for status in range(200, 600) if _means(status) is Outcome.NOT_KNOWN}
    assert known == {404}


def _means(status: int) -> Outcome:
    return outcome(status, OPTIONS.status)
