"""The outcome of a response, its message, its steps, and how long it may be cached."""

import asyncio
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

import idv_upstream
from idv_upstream.backend import UpstreamBackend
from idv_upstream.options import UpstreamOptions
from idv_upstream.reader import ResponseReader, freshness
from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.raw import Response
from support.databases.upstream_backends import PLAIN, mapper, upstream
from support.fakes.outcomes import outcome
from support.http.scripted_server import Said, http
from tornado_idv import (
    BackendResult,
    Broken,
    ByCard,
    ByNickname,
    LookupFailed,
    Query,
    Step,
    Unavailable,
    User,
    yaml_loader,
)

ALICE = User("Free", "1", "alice")
QUERY = ByNickname("alice")
RECORD = {"plan": "Free", "card": "1", "login": "alice"}


def reader(
    *, cache_control: str = "follow", auth: str = "s3cret", status: Any = (), **mapping: Any
) -> ResponseReader:
    """The reader of a backend; ``auth`` is its bearer token."""
    options = {
        "by_nickname": {"url": "/{nickname}"},
        "by_card": {"url": "/{card_number}"},
        "response": {**PLAIN, **mapping},
        "status": dict(status),
        "cache_control": cache_control,
        "auth": {"kind": "bearer", "token": auth} if auth else {"kind": "none"},
    }
    options = {"name": "crm", "kind": "upstream", "base_url": "http://h", **options}
    return UpstreamBackend(UpstreamOptions.model_validate(options)).reader


def response(
    status: int = 200, body: Any = RECORD, content_type: str = "application/json", **headers: str
) -> Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, CIMultiDict({"Content-Type": content_type, **fields}), content)


def failure(of: ResponseReader, received: Response, query: Query = QUERY) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        of.read(query, received)
    return caught.value


@pytest.mark.parametrize(("sent", "seconds"), [("30", 30), ("900", 60), ("0", 1), ("soon", 1)])
@pytest.mark.parametrize("status", [503, 404])
def test_failure_has_the_retry_after_of_a_response(status: int, sent: str, seconds: float) -> None:
    """At most as long as no request is sent."""
    read = reader(status={404: "unavailable"})
    assert failure(read, response(status, Retry_After=sent)).retry_after == seconds


@pytest.mark.parametrize("status", [401, 403, 407])
def test_missing_credentials_are_reported_as_missing(status: int) -> None:
    error = failure(reader(auth=""), response(status))
    assert isinstance(error, Broken)
    assert error.reason == f"refused (status {status}), and auth sets no credential"


@pytest.mark.parametrize(("meant", "expected"), [("read", ALICE), ("not_known", None)])
def test_status_may_be_configured_to_be_read_or_not_found(
    meant: str, expected: User | None
) -> None:
    assert reader(status={400: meant}).read(QUERY, response(400)) == expected


@pytest.mark.parametrize(
    "content_type", ["Application/JSON; charset=utf-8", "application/json ; v=1", "a/scim+json"]
)
def test_any_media_type_of_json_is_read(content_type: str) -> None:
    assert reader().read(QUERY, response(content_type=content_type)) == ALICE


@pytest.mark.parametrize("content_type", ["text/html", "", "json"])
def test_another_media_type_is_broken_unless_any_is_configured(content_type: str) -> None:
    received = response(content_type=content_type)
    reason = failure(reader(), received).reason
    assert reason == "a response of status 200 that is not application/json"
    assert reader(media_type="any").read(QUERY, received) == ALICE


def test_empty_body_is_broken_unless_found_when_is_configured() -> None:
    nothing = response(body=b"")
    assert isinstance(failure(reader(), nothing), Broken)
    assert isinstance(failure(reader(not_known_when="!code"), response(404, b"")), Broken)
    assert reader(found_when="login").read(QUERY, nothing) is None
    assert reader(found_when="login").read(QUERY, response()) == ALICE


def test_not_known_when_is_read_from_the_body_of_statuses_that_mean_not_found() -> None:
    """A 404 of a wrong address must not read as "not found"."""
    strict = reader(not_known_when="code == 'no_such_person'")
    assert strict.read(QUERY, response(404, {"code": "no_such_person"})) is None
    statuses = range(200, 600)
    assert [x for x in statuses if strict.wants_body(x) is not False] == [200, 204, 404, 410]
    assert [each for each in statuses if reader().wants_body(each) is not False] == [200]


@pytest.mark.parametrize(
    ("status", "kind", "start"),
    [
        (400, Broken, "unexpected status 400"),
        (308, Broken, "a redirect (status 308); redirects are not followed"),
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
        ('max-age="60"', 60),
        ("max-age=60, s-maxage=10", 10),
        ("max-age=60, s-maxage=x", 60),
        ("no-store", None),
        ("max-age=60, no-store", 60),
        ("max-age=-1", None),
        ("max-age=\u0661", None),
        ("max-age=99999999999", None),
        ("x-max-age=5", None),
    ],
)
def test_cache_control_limits_the_time_in_cache(cache_control: str, seconds: float | None) -> None:
    assert freshness(CIMultiDict({"Cache-Control": cache_control}))[0] == seconds


def test_no_store_is_found_in_any_line() -> None:
    lines = CIMultiDict([("Cache-Control", "public"), ("Cache-Control", "private,No-Store")])
    assert freshness(lines) == (None, False)
    received = response(Cache_Control="no-store")
    assert reader().limited(ALICE, received) == BackendResult(ALICE, storable=False)
    assert reader(cache_control="ignore").limited(ALICE, received) == ALICE


@pytest.mark.parametrize(("age", "seconds"), [("20", 40), ("90", 0), ("x", 60)])
def test_age_of_a_response_is_subtracted(age: str, seconds: float) -> None:
    assert freshness(CIMultiDict({"cache-control": "max-age=60", "age": age}))[0] == seconds


@pytest.mark.parametrize("seconds", [60, 0])
def test_cache_control_is_passed_on_with_the_answer(seconds: int) -> None:
    """With 0 it may still be served stale."""
    received = response(Cache_Control=f"max-age={seconds}")
    for user in (ALICE, None):
        assert reader().limited(user, received) == BackendResult(user, ttl=seconds, storable=True)


# The example of the README


README = Path(idv_upstream.__file__).with_name("README.md").read_text(encoding="utf-8")
HIT = {"login": "alice", "card": "1", "tariff": 1}
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


def documented_reader(page: str, title: str) -> ResponseReader:
    """The reader of the only backend below a heading of a page."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]
    (block,) = re.findall(r"^(backends:\n(?: .*\n)+)", section, re.MULTILINE)
    (backend,) = yaml_loader.read(block.encode(), "page.md")["backends"]
    return reader(status=backend.get("status", {}), **backend["response"])


@pytest.mark.parametrize(("status", "body", "expected"), ALWAYS_200.values(), ids=ALWAYS_200.keys())
def test_documented_mapping_reads_each_documented_response(
    status: int, body: Any, expected: User | type[LookupFailed] | None
) -> None:
    documented = documented_reader(README, "Examples")
    if isinstance(expected, type):
        assert type(failure(documented, response(status, body))) is expected
    else:
        assert documented.read(QUERY, response(status, body)) == expected


# Errors and their messages

BUSY = {"ok": False, "error": {"code": "BUSY", "message": "slow down, alice with 40001234"}}


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"unavailable_when": "!ok", "broken_when": "!ok"}, Unavailable, "(unavailable_when)"),
        ({"broken_when": "error.code == 'BUSY'"}, Broken, "(broken_when)"),
        (
            {"unavailable_when": "!ok", "error": "error.message"},
            Unavailable,
            "(unavailable_when): slow down, … with …",
        ),
        ({"unavailable_when": "!ok", "error": "length(error)"}, Unavailable, "(unavailable_when)"),
    ],
)
def test_error_with_status_200_is_no_missing_user(
    options: dict[str, Any], kind: type[LookupFailed], said: str
) -> None:
    """Whatever ``found_when`` says; the message is masked, and for the log alone."""
    failed = failure(reader(found_when="ok", **options), response(body=BUSY))
    assert type(failed) is kind
    assert failed.reason == f"the response is an error {said}"
    assert failed.counts_against_breaker


MESSAGES = {
    "x" * 500: "x" * 100,
    "a\nb": "a\\nb",
    "no such user: ALICE, Alice": "no such user: …, …",
    "no A.L-I C'E": "no …",
    "4000 123, 400-012-341, 12 of 30": "…, …, 12 of 30",
    f"token {'a1' * 495} alice": "token … …",  # the message is cut within the value
    "for bob@people.example, 4000123412341234": "for …, …",
    "key s3cret or pNq3x-4Zt6w8Yq1Lm0aB is invalid": "key … or … is invalid",
}


@pytest.mark.parametrize(("message", "shown"), MESSAGES.items(), ids=MESSAGES.values())
def test_message_of_an_error_is_bounded_and_masked(message: str, shown: str) -> None:
    read = reader(broken_when="e", error="e")
    assert failure(read, response(body={"e": message})).reason == (
        f"the response is an error (broken_when): {shown}"
    )


@pytest.mark.parametrize("path", ["Eve%2Bx%40people.example", "eve%2bx%40people.example"])
def test_encoded_values_in_a_message_are_masked(path: str) -> None:
    """The upstream quotes the URL of the request, with an API key in it."""
    read = reader(auth="s3/cr+et", broken_when="e", error="e")
    body = {"e": f"no {path}?key=s3%2Fcr%2Bet: s3/cr+et"}
    masked = failure(read, response(body=body), ByNickname("Eve+x@people.example"))
    assert masked.reason.endswith(": no …?key=…: …")
    for query, text in ((ByCard("401"), "4  0 - 1"), (ByNickname('a"b'), 'a\\"b')):
        assert failure(read, response(body={"e": text}), query).reason.endswith("): …")


def test_long_message_is_masked_quickly() -> None:
    before, read = time.process_time(), reader(broken_when="e", error="e")
    failure(read, response(body={"e": "x" * 30_000 + "alic" * 7_500}))
    failure(read, response(body={"e": "." * 60 + "&amp;a"}), ByNickname("." * 60 + "&a"))
    assert time.process_time() - before < 0.5


REFUSAL = b'{"error": "permission denied for table users"}'


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(401, REFUSAL), ": permission denied for table users"),
        (http(401, b""), ""),
        (http(401, b"<html>", kind="text/html"), ""),
        (http(401, b"x" * 100_000), ""),
        (http(401, b"x", "Content-Encoding: gzip"), ""),
        (b"HTTP/1.1 401 No\r\nContent-Length: 999\r\n\r\n{", ""),
    ],
    ids=["JSON", "empty", "HTML", "long", "damaged", "cut"],
)
async def test_refusal_is_one_whatever_its_body(answer: bytes, said: str) -> None:
    options = {"by_nickname": {"url": "/{nickname}"}, "response": {**PLAIN, "error": "error"}}
    async with upstream(Said(answer, "close"), **options) as (_, backend):
        text = "broken: refused (status 401), and auth sets no credential"
        assert await outcome(backend) == text + said


# Steps


def explained(tried: ResponseMapper, document: Any) -> list[Step]:
    steps: list[Step] = []
    tried.record_steps(steps)
    with suppress(LookupFailed):
        tried.user(QUERY, document)
    return steps


FIELDS = ["card_number", "nickname", "plan"]
PAGE = {"items": [RECORD], "total": 9}
LIST = {"found_when": "total", "select": "items"}
ERRORS = {"unavailable_when": "busy", "complete_when": "total == `1`", "select": "items"}
STATE = {"select": "items", "not_known_when": "state == 'disabled'"}
EXPLAINED: dict[str, tuple[dict[str, str], Any, list[str]]] = {
    "no user": (LIST, {"items": []}, ["found_when", "select"]),
    "user": (LIST, PAGE, ["found_when", "select", *FIELDS]),
    "url": ({"profile_url": "u"}, {**RECORD, "u": "x"}, [*FIELDS[:2], "profile_url", "plan"]),
    "a wrong field": ({"card_number": "lower(no)"}, RECORD, ["card_number"]),
    "the requested value is taken": ({"check_echo": "false"}, RECORD, ["card_number", "plan"]),
    # A response that says "slow down", and one of several pages, may hold records of others.
    "busy": (ERRORS, {**PAGE, "busy": True}, ["unavailable_when"]),
    "one page": (ERRORS, PAGE, ["unavailable_when", "complete_when"]),
    "a wrong condition": ({"broken_when": "lower(busy)"}, RECORD, ["broken_when"]),
    "a condition on the record": (STATE, PAGE, ["select", "not_known_when", *FIELDS]),
}


@pytest.mark.parametrize(("options", "document", "names"), EXPLAINED.values(), ids=EXPLAINED)
def test_every_expression_up_to_the_one_that_decides_is_explained(
    options: dict[str, str], document: Any, names: list[str]
) -> None:
    assert [step.name for step in explained(mapper(**options), document)] == names


def test_results_of_expressions_are_explained() -> None:
    steps = explained(mapper(**STATE, nickname="lower(no)"), PAGE)
    reason = "lower(no) does not fit the response: lower() is given null"
    assert steps[1:] == [
        Step("not_known_when", result=False, expression="state == 'disabled'", missing=("state",)),
        Step("card_number", "1", "card"),
        Step("nickname", None, "lower(no)", reason),
    ]
    (_, step, *_) = explained(mapper(**STATE), {"items": [{**RECORD, "state": "disabled"}]})
    assert step == Step("not_known_when", result=True, expression="state == 'disabled'")


async def test_lookups_beside_an_explained_one_are_not_recorded() -> None:
    options, steps = {"by_nickname": {"url": "/{nickname}"}, "response": PLAIN}, list[Step]()
    async with upstream(*[http(200, json.dumps(RECORD).encode())] * 2, **options) as (_, backend):
        await asyncio.gather(backend.explain(QUERY, steps), backend.find(QUERY))
    assert [each.name for each in steps].count("plan") == 1


def test_of_the_records_of_a_list_five_are_explained() -> None:
    """Again for a further response of the same lookup."""
    page = {"items": [{"login": f"a{n}", "card": str(n)} for n in range(90)]}
    read, steps = mapper(select="items", match="echo"), list[Step]()
    read.record_steps(steps)
    for _ in range(2):
        steps.append(Step("response", 200))
        assert read.user(QUERY, page) is None
    shown = [step.result for step in steps if step.name == "nickname"]
    assert shown == [f"a{n}" for n in range(5)] * 2


@pytest.mark.parametrize(
    ("expression", "document", "missing"),
    [
        ("data.user", {"data": {}}, ["data.user"]),
        ("items[0].user", {"items": [{}]}, ["items.user"]),
        ("items[0].user", {"items": [{"user": None}]}, []),
        ("a || b", {"a": None}, ["b"]),
        ("a.*.b | [0]", {"a": {"x": {"b": None}}}, []),
    ],
)
def test_missing_member_is_distinguished_from_null(
    expression: str, document: Any, missing: list[str]
) -> None:
    step, *_ = explained(mapper(found_when=expression), document)
    note = f"missing: {', '.join(missing)}" if missing else ""
    assert (step.result, step.note) == (None, note)


# Recipes

RECIPES = Path(idv_upstream.__file__).with_name("RECIPES.md").read_text(encoding="utf-8")
EXTENSION = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
SCIM_ALICE = {"userName": "alice", "userType": "Free", EXTENSION: {"employeeNumber": "0012"}}


@pytest.mark.parametrize(
    ("title", "document", "expected"),
    [
        ("SCIM 2.0", {"totalResults": 1, "Resources": [SCIM_ALICE]}, "found"),
        ("SCIM 2.0", {"totalResults": 0}, "not found"),
        ("SCIM 2.0", {"totalResults": 1, "Resources": []}, "broken: found_when"),
        ("SCIM 2.0", {"totalResults": 0, "Resources": [SCIM_ALICE]}, "broken: found_when"),
        ("SCIM 2.0", {"totalResults": 1}, "broken: select"),
        ("SCIM 2.0", {"Resources": []}, "broken: found_when"),
        ("GraphQL", {"data": {"found": []}}, "not found"),
        ("GraphQL", {"data": {"fund": []}}, "broken: select"),
        ("GraphQL", {"data": {"found": []}, "errors": [{"message": "no"}]}, "broken: the response"),
        ("PostGraphile", {"data": {"found": {"nodes": []}, "witness": {"a": "w"}}}, "not found"),
        ("PostGraphile", {"data": {"found": {"nodes": []}, "witness": None}}, "broken: the resp"),
        ("Directus", {"data": [], "meta": {"total_count": 9, "filter_count": 0}}, "not found"),
        ("Directus", {"data": [], "meta": {"filter_count": 0}}, "broken: the response"),
    ],
)
def test_recipe_believes_no_contradiction(title: str, document: Any, expected: str) -> None:
    for query in (ByNickname("alice"), ByCard("0012")):
        try:
            user = documented_reader(RECIPES, title).read(query, response(body=document))
        except Broken as error:
            result = f"broken: {error.reason}"
        else:
            result = "found" if user else "not found"
        assert result.startswith(expected)
