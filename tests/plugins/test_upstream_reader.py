"""The outcome of a response, and how long it may be cached."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from idv_upstream.backend import UpstreamBackend
from idv_upstream.options import UpstreamOptions
from idv_upstream.response.options import Outcome, ResponseOptions
from idv_upstream.response.raw import Response
from idv_upstream.response.reader import ResponseReader, freshness
from support.databases.upstream_backends import PLAIN
from tornado_idv import (
    BackendResult,
    Broken,
    ByNickname,
    LookupFailed,
    Unavailable,
    User,
    yaml_loader,
)

ALICE = User("Free", "1", "alice")
QUERY = ByNickname("alice")
RECORD = {"plan": "Free", "card": "1", "login": "alice"}


def reader(
    statuses: dict[int, Outcome] | None = None,
    *,
    hints: bool = True,
    credential: bool = True,
    **mapping: Any,
) -> ResponseReader:
    options = ResponseOptions.model_validate({**PLAIN, **mapping})
    return ResponseReader(options, statuses or {}, hints=hints, credential=credential)


def response(
    status: int = 200, body: Any = RECORD, content_type: str = "application/json", **headers: str
) -> Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, CIMultiDict({"Content-Type": content_type, **fields}), content)


def failure(of: ResponseReader, received: Response) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        of.read(QUERY, received)
    return caught.value


@pytest.mark.parametrize(("sent", "seconds"), [("30", 30), ("900", 60), ("0", 1), ("soon", 1)])
@pytest.mark.parametrize("status", [429, 503, 404])
def test_failure_has_the_retry_after_of_a_response(status: int, sent: str, seconds: float) -> None:
    """At most as long as no request is sent."""
    read = reader({404: Outcome.UNAVAILABLE})
    assert failure(read, response(status, Retry_After=sent)).retry_after == seconds


@pytest.mark.parametrize("status", [401, 403, 407])
def test_missing_credentials_are_reported_as_missing(status: int) -> None:
    error = failure(reader(credential=False), response(status))
    assert isinstance(error, Broken)
    assert error.reason == f"refused (status {status}), and auth sets no credential"


@pytest.mark.parametrize(("meant", "expected"), [(Outcome.READ, ALICE), (Outcome.NOT_KNOWN, None)])
def test_status_may_be_configured_to_be_read_or_not_found(
    meant: Outcome, expected: User | None
) -> None:
    assert reader({400: meant}).read(QUERY, response(400)) == expected


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/scim+json"]
)
def test_any_media_type_of_json_is_read(content_type: str) -> None:
    assert reader().read(QUERY, response(content_type=content_type)) == ALICE


@pytest.mark.parametrize("content_type", ["text/html", "", "text/plain; a=json", "json"])
def test_another_media_type_is_broken_unless_any_is_configured(content_type: str) -> None:
    received = response(content_type=content_type)
    assert (
        failure(reader(), received).reason
        == "a response of status 200 that is not application/json"
    )
    assert reader(media_type="any").read(QUERY, received) == ALICE


def test_empty_body_is_broken_unless_found_when_is_configured() -> None:
    nothing = response(body=b"")
    assert isinstance(failure(reader(), nothing), Broken)
    assert reader(found_when="login").read(QUERY, nothing) is None
    assert reader(found_when="login").read(QUERY, response()) == ALICE


def test_not_known_when_is_read_from_the_body_of_statuses_that_mean_not_found() -> None:
    """A 404 of a wrong address must not read as "not found"."""
    strict = reader(not_known_when="code == 'no_such_person'")
    assert strict.read(QUERY, response(404, {"code": "no_such_person"})) is None
    statuses = range(200, 600)
    assert [each for each in statuses if strict.wants_body(each)] == [200, 204, 404, 410]
    assert [each for each in statuses if reader().wants_body(each)] == [200]


@pytest.mark.parametrize(
    ("status", "kind", "start"),
    [
        (400, Broken, "unexpected status 400"),
        (401, Broken, "the credentials are refused (status 401)"),
        (403, Broken, "the credentials are refused (status 403)"),
        (404, Broken, "not_known_when is false for a response of status 404"),
        (500, Unavailable, "temporarily unavailable (status 500)"),
        (200, Broken, "a wrong record: card_number (card) is missing"),
    ],
)
def test_message_of_every_response_that_is_no_user_is_read(
    status: int, kind: type[LookupFailed], start: str
) -> None:
    options = {"error": "message", "not_known_when": "code == 'no_such_person'"}
    documented = reader(**options)
    body = {"message": "permission denied for table users, alice"}
    failed = failure(documented, response(status, body))
    assert type(failed) is kind
    assert failed.reason == f"{start}: permission denied for table users, …"
    assert documented.wants_body(status) is not False
    unread = failure(documented, response(status, b"<html>", "text/html"))
    assert type(unread) is kind
    assert documented.read(QUERY, response(404, {"code": "no_such_person"})) is None


def test_nickname_in_another_case_is_of_the_same_user_where_case_is_folded() -> None:
    given = {"name": "crm", "kind": "upstream", "base_url": "http://h", "response": PLAIN}
    given |= {"by_nickname": {"url": "/{nickname}"}}
    options = UpstreamOptions.model_validate(given, context={"nickname_case": "fold"})
    folding = UpstreamBackend(options).reader
    assert folding.read(QUERY, response(body={**RECORD, "login": "Alice"})) == ALICE
    bob = response(body={**RECORD, "login": "bob"})
    assert failure(folding, bob).reason == "response is for a user other than requested"


# Freshness


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [
        ("max-age=60", 60),
        ("MAX-AGE=60", 60),
        ('max-age="60"', 60),
        ("max-age=60, s-maxage=10", 10),
        ("s-maxage=100, max-age=60", 100),
        ("max-age=0", 0),
        ("no-store", None),
        ("max-age=60, no-store", 60),
        ("max-age", None),
        ("max-age=-1", None),
        ("max-age=\u0661", None),
        ("max-age=99999999999", None),
        ("x-max-age=5", None),
    ],
)
def test_cache_control_limits_the_time_in_cache(cache_control: str, seconds: float | None) -> None:
    assert freshness(CIMultiDict({"Cache-Control": cache_control}))[0] == seconds


@pytest.mark.parametrize(
    "lines", [["no-store"], ["max-age=60, no-store"], ["private,No-Store"], ["public", "no-store"]]
)
def test_no_store_is_found_in_any_line(lines: list[str]) -> None:
    received = Response(
        200,
        CIMultiDict([("Content-Type", "application/json"), *(("Cache-Control", x) for x in lines)]),
        json.dumps(RECORD).encode(),
    )
    answer = reader().read(QUERY, received)
    assert isinstance(answer, BackendResult)
    assert not answer.storable
    assert reader(hints=False).read(QUERY, received) == ALICE


@pytest.mark.parametrize(("age", "seconds"), [("20", 40), ("90", 0), ("x", 60), ("-5", 60)])
def test_age_of_a_response_is_subtracted(age: str, seconds: float) -> None:
    assert freshness(CIMultiDict({"cache-control": "max-age=60", "age": age}))[0] == seconds


@pytest.mark.parametrize("seconds", [60, 0])
def test_cache_control_is_passed_on_with_the_answer(seconds: int) -> None:
    """With 0 it may still be served stale."""
    control = f"max-age={seconds}"
    for received, user in (
        (response(Cache_Control=control), ALICE),
        (response(404, b"", Cache_Control=control), None),
    ):
        assert reader().read(QUERY, received) == BackendResult(user, ttl=seconds, storable=True)


# The samples of docs/tutorial/caching-proxy.md and of the README


ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "caching-proxy.md"
README = ROOT / "plugins" / "idv_upstream" / "README.md"
RECORD_THERE = {"login": "alice", "card": "1", "subscription": {"name": "Free"}}
HIT = {"login": "alice", "card": "1", "tariff": 1}
ANSWERS = {
    "a record": (200, RECORD_THERE, ALICE),
    "a list of one": (200, {"items": [RECORD_THERE]}, ALICE),
    "an empty list": (200, {"items": []}, None),
    "its record for not found": (404, {"error": "no such person"}, None),
    "a wrong path": (404, {"error": "Not Found", "path": "/peple"}, Broken),
    "an error": (200, {"error": "database locked"}, Broken),
    "a list that is not there": (200, {"items": None}, Broken),
    "a page": (404, b"<html>", Broken),
}
ALWAYS_200 = {
    "a list of one": (200, {"ok": True, "total": 1, "hits": [HIT]}, ALICE),
    "an empty list": (200, {"ok": True, "total": 0, "hits": []}, None),
    "two users": (200, {"ok": True, "total": 2, "hits": [HIT, HIT]}, Broken),
    "an error like an empty list": (200, {"ok": False, "total": 0, "hits": []}, Unavailable),
    "an error": (200, {"ok": False, "error": "wrong key"}, Unavailable),
    "no total, and an empty list": (200, {"ok": True, "hits": []}, Broken),
    "a total, and an empty list": (200, {"ok": True, "total": 1, "hits": []}, Broken),
    "a wrong path": (404, {"ok": True, "total": 0, "hits": []}, Broken),
}


def documented_reader(page: Path, heading: str) -> ResponseReader:
    """The reader of the backend that is configured below a heading of a page."""
    section = page.read_text(encoding="utf-8").partition(heading)[2]
    (block,) = re.findall(r"^(backends:\n(?: .*\n)+)", section.partition("\n## ")[0], re.MULTILINE)
    (backend,) = yaml_loader.read(block.encode(), "proxy.md")["backends"]
    options = ResponseOptions.model_validate(backend["response"])
    statuses = {int(status): Outcome(text) for status, text in backend.get("status", {}).items()}
    return ResponseReader(options, statuses, hints=True, credential=True)


@pytest.mark.parametrize(
    ("page", "heading", "status", "body", "expected"),
    [
        pytest.param(page, heading, *answer, id=f"{heading}: {name}")
        for page, heading, answers in (
            (README, "\n## Examples", ALWAYS_200),
            (TUTORIAL, "\n## 3. The mapping", ANSWERS),
        )
        for name, answer in answers.items()
    ],
)
def test_documented_mapping_reads_each_documented_response(
    page: Path, heading: str, status: int, body: Any, expected: User | type[LookupFailed] | None
) -> None:
    documented = documented_reader(page, heading)
    if isinstance(expected, type):
        assert type(failure(documented, response(status, body))) is expected
    else:
        assert documented.read(QUERY, response(status, body)) == expected
