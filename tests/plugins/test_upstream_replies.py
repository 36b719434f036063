"""What a reply of a directory comes to, and for how long it may be remembered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from multidict import CIMultiDict

from idv_upstream.freshness import seconds_fresh
from idv_upstream.replies import Replies
from idv_upstream.responses import ResponseOptions
from idv_upstream.statuses import Outcome
from idv_upstream.transport import Reply
from tornado_idv import BackendResult, Broken, ByNickname, LookupFailed, Unavailable, User, yamltext

ALICE = User("Free", "1", "alice")
QUERY = ByNickname("alice")
FIELDS = {"plan": "plan", "card_number": "card", "nickname": "login"}
RECORD = {"plan": "Free", "card": "1", "login": "alice"}


def replies(
    statuses: dict[int, Outcome] | None = None,
    *,
    hints: bool = True,
    credential: bool = True,
    **response: Any,
) -> Replies:
    options = ResponseOptions.model_validate({**FIELDS, **response})
    return Replies(options, statuses or {}, hints=hints, credential=credential)


def reply(
    status: int = 200, body: Any = RECORD, content_type: str = "application/json", **headers: str
) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, CIMultiDict({"Content-Type": content_type, **fields}), content)


def failure(of: Replies, came: Reply) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        of.read(QUERY, came)
    return caught.value


def test_a_user_is_read() -> None:
    assert replies().read(QUERY, reply()) == ALICE


@pytest.mark.parametrize("status", [204, 404, 410])
def test_these_statuses_say_not_known(status: int) -> None:
    assert replies().read(QUERY, reply(status, b"", "text/html")) is None


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_these_statuses_say_not_now(status: int) -> None:
    error = failure(replies(), reply(status))
    assert isinstance(error, Unavailable)
    assert error.reason == f"cannot answer now (status {status})"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    error = failure(replies(), reply(status))
    assert isinstance(error, Broken)
    assert error.reason == f"a redirect (status {status}), which is not followed"


@pytest.mark.parametrize("status", [201, 206, 304, 400, 405, 418, 451])
def test_other_statuses_mean_nothing(status: int) -> None:
    error = failure(replies(), reply(status))
    assert isinstance(error, Broken)
    assert error.reason == f"an answer of status {status}, which is neither a user nor nobody"


@pytest.mark.parametrize("status", [401, 403, 407])
def test_our_credentials_refused_are_broken(status: int) -> None:
    """Never the caller's 401."""
    error = failure(replies(), reply(status))
    assert isinstance(error, Broken)
    assert error.reason == f"our credentials are refused (status {status})"


@pytest.mark.parametrize("status", [401, 403, 407])
def test_credentials_that_are_missing_are_told_as_missing(status: int) -> None:
    error = failure(replies(credential=False), reply(status))
    assert isinstance(error, Broken)
    assert error.reason == f"refused (status {status}), and auth sets no credential"


@pytest.mark.parametrize(
    ("meant", "expected"),
    [(Outcome.READ, ALICE), (Outcome.NOT_KNOWN, None)],
)
def test_a_status_may_be_given_another_meaning(meant: Outcome, expected: User | None) -> None:
    assert replies({400: meant}).read(QUERY, reply(400)) == expected


def test_a_status_may_be_made_a_failure() -> None:
    both = replies({404: Outcome.BROKEN, 400: Outcome.UNAVAILABLE})
    assert isinstance(failure(both, reply(404)), Broken)
    assert isinstance(failure(both, reply(400)), Unavailable)


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "Application/JSON", "application/scim+json"],
)
def test_json_by_any_of_its_names_is_read(content_type: str) -> None:
    assert replies().read(QUERY, reply(content_type=content_type)) == ALICE


@pytest.mark.parametrize("content_type", ["text/html", "", "text/plain; a=json", "json"])
def test_what_is_not_called_json_is_broken_unless_told_otherwise(content_type: str) -> None:
    came = reply(content_type=content_type)
    assert failure(replies(), came).reason == "an answer of status 200 that is not application/json"
    assert replies(media_type="any").read(QUERY, came) == ALICE


def test_nothing_at_all_is_broken_unless_found_when_says_what_it_means() -> None:
    nothing = reply(body=b"")
    assert isinstance(failure(replies(), nothing), Broken)
    assert replies(found_when="login").read(QUERY, nothing) is None
    assert replies(found_when="login").read(QUERY, reply()) == ALICE


class TestNotKnownWhen:
    """A 404 of a wrong address must not read as "no such user"."""

    of = replies(not_known_when="code == 'no_such_person'")

    def test_what_says_so_is_not_known(self) -> None:
        assert self.of.read(QUERY, reply(404, {"code": "no_such_person"})) is None

    @pytest.mark.parametrize("body", [{"code": "no_such_route"}, {}, [], None, b"", b"<html>"])
    def test_what_does_not_say_so_is_broken(self, body: Any) -> None:
        assert isinstance(failure(self.of, reply(404, body)), Broken)

    def test_a_page_is_broken(self) -> None:
        assert isinstance(failure(self.of, reply(404, b"<html>", "text/html")), Broken)

    def test_its_body_is_wanted(self) -> None:
        wanted = {status for status in range(200, 600) if self.of.wants_body(status)}
        assert wanted == {200, 204, 404, 410}
        assert [status for status in range(200, 600) if replies().wants_body(status)] == [200]


# Freshness


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [
        ("max-age=60", 60),
        ("public, max-age=60, must-revalidate", 60),
        ("MAX-AGE=60", 60),
        ('max-age="60"', 60),
        ("max-age=60, s-maxage=10", 10),
        ("s-maxage=100, max-age=60", 100),
        ("max-age=0", 0),
        ("no-store", None),
        ("max-age=60, no-store", 60),
        ("no-cache", None),
        ("", None),
        ("max-age", None),
        ("max-age=", None),
        ("max-age=-1", None),
        ("max-age=1.5", None),
        ("max-age=\u0661", None),
        ("max-age=99999999999", None),
        ("x-max-age=5", None),
        (",,;=", None),
    ],
)
def test_cache_control_says_for_how_long(cache_control: str, seconds: float | None) -> None:
    assert seconds_fresh(CIMultiDict({"Cache-Control": cache_control})) == seconds


@pytest.mark.parametrize(
    "lines", [["no-store"], ["max-age=60, no-store"], ["private,No-Store"], ["public", "no-store"]]
)
def test_what_must_not_be_stored_is_said_so(lines: list[str]) -> None:
    """On whichever line it stands."""
    came = Reply(
        200,
        CIMultiDict([("Content-Type", "application/json"), *(("Cache-Control", x) for x in lines)]),
        json.dumps(RECORD).encode(),
    )
    answer = replies().read(QUERY, came)
    assert isinstance(answer, BackendResult)
    assert not answer.storable
    assert replies(hints=False).read(QUERY, came) == ALICE


def test_no_longer_fresh_is_not_forbidden() -> None:
    """It may be served stale."""
    answer = replies().read(QUERY, reply(Cache_Control="max-age=0"))
    assert isinstance(answer, BackendResult)
    assert (answer.ttl, answer.storable) == (0, True)


@pytest.mark.parametrize(("age", "seconds"), [("20", 40), ("90", 0), ("x", 60), ("-5", 60)])
def test_the_age_an_answer_has_already_counts(age: str, seconds: float) -> None:
    assert seconds_fresh(CIMultiDict({"cache-control": "max-age=60", "age": age})) == seconds


def test_a_hint_goes_with_the_answer() -> None:
    assert replies().read(QUERY, reply(Cache_Control="max-age=60")) == BackendResult(
        ALICE, ttl=60.0
    )
    for came, user in (
        (reply(Cache_Control="max-age=60"), ALICE),
        (reply(404, b"", Cache_Control="max-age=60"), None),
    ):
        answer = replies().read(QUERY, came)
        assert isinstance(answer, BackendResult)
        assert (answer.user, answer.ttl) == (user, 60)


def test_a_hint_may_be_left_alone() -> None:
    assert replies(hints=False).read(QUERY, reply(Cache_Control="no-store")) == ALICE


# The sample of docs/proxy.md


PAGE = Path(__file__).parents[2] / "docs" / "proxy.md"
RECORD_THERE = {"login": "alice", "card": "1", "subscription": {"name": "Free"}}
ANSWERS = {
    "a record": (200, RECORD_THERE, ALICE),
    "a list of one": (200, {"items": [RECORD_THERE]}, ALICE),
    "an empty list": (200, {"items": []}, None),
    "its words for nobody": (404, {"error": "no such person"}, None),
    "a wrong path": (404, {"status": 404, "error": "Not Found", "path": "/peple"}, Broken),
    "an error": (200, {"error": "database locked"}, Broken),
    "a list that is not there": (200, {"items": None}, Broken),
    "nothing": (200, None, Broken),
    "a page": (404, b"<html>", Broken),
}


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_documented_mapping_reads_each_documented_response(
    status: int, body: Any, expected: User | type[Broken] | None
) -> None:
    (sample,) = re.findall(
        r"^ +response:\n(.*?)^ +auth:", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    options = yamltext.read(dedent(sample).encode(), "proxy.md")
    sampled = Replies(ResponseOptions.model_validate(options), {}, hints=True, credential=True)
    if expected is Broken:
        assert isinstance(failure(sampled, reply(status, body)), Broken)
    else:
        assert sampled.read(QUERY, reply(status, body)) == expected
