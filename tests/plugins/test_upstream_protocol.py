"""The service's own protocol, asked and read in the words of any other mapping."""

from __future__ import annotations

import json
from typing import Any

import pytest

from idv_upstream.mapping import Reading
from idv_upstream.protocol import OWN_BY_CARD, OWN_BY_NICKNAME, OWN_RESPONSE, OWN_STATUS
from idv_upstream.request import Asking, Template
from idv_upstream.statuses import Outcome, outcome
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
READING = Reading(OWN_RESPONSE)


@pytest.mark.parametrize("nickname", ["alice", '"\\\n&'], ids=["plain", "hostile"])
def test_a_nickname_is_asked_for(nickname: str) -> None:
    """It changes nothing, so it may be asked again."""
    asking = Template.of(OWN_BY_NICKNAME, "").asking(ByNickname(nickname))
    body = json.dumps({"input": f"@{nickname}"}).encode()
    kind = {"Content-Type": "application/json"}
    assert asking == Asking("POST", "/api/v1/identify/url", kind, body, repeatable=True)


def test_a_card_number_is_asked_for() -> None:
    """As text, with its zeros."""
    asking = Template.of(OWN_BY_CARD, "").asking(ByCard("0012"))
    kind = {"Content-Type": "application/json"}
    body = b'{"card_number": "0012"}'
    assert asking == Asking("POST", "/api/v1/identify/card", kind, body, repeatable=True)


@pytest.mark.parametrize("more", [{}, {"surprise": [1]}], ids=["as today", "of a newer version"])
def test_the_record_of_a_user_is_read(more: dict[str, Any]) -> None:
    """Members that nobody knows are let pass."""
    user = User("Free", "0012", "alice", "https://profiles.example/m/alice")
    for query in QUERIES:
        assert READING.user(query, {**RECORD, **more}) == user


WRONG: dict[str, tuple[Any, str]] = {
    "not found": (NOT_FOUND, "no object, but true or false"),
    "null": (None, "no object"),
    "text": ("canary", "no object"),
    "list": ([RECORD], "no object"),
    "status": ({**RECORD, "status": "error"}, "no object"),
    "status true": ({**RECORD, "status": True}, "no object"),
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
def test_any_other_answer_is_broken(document: Any, said: str) -> None:
    """Whichever query it is the answer to."""
    for query in QUERIES:
        with pytest.raises(Broken) as caught:
            READING.user(query, document)
        assert said in caught.value.reason
        assert "canary" not in caught.value.reason


def test_only_the_record_of_not_found_says_so() -> None:
    """A 404 of anything else is another service, or a wrong address."""
    assert READING.is_not_known(NOT_FOUND)
    documents: list[Any] = [None, [], {}, RECORD, {**NOT_FOUND, "code": "no_such_route"}, "canary"]
    for document in documents:
        assert not READING.is_not_known(document)
    assert not READING.is_not_known({"code": "not_found"})


def test_only_404_is_not_known() -> None:
    """The other statuses that can mean it elsewhere are never answered."""
    known = {status for status in range(200, 600) if _means(status) is Outcome.NOT_KNOWN}
    assert known == {404}


def _means(status: int) -> Outcome:
    return outcome(status, OWN_STATUS)
