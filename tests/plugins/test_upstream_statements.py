"""Statements of a response beside the user: contradictions, disabled users, errors and pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

import idv_upstream
from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import ResponseOptions
from idv_upstream.response.raw import Response
from idv_upstream.response.reader import ResponseReader
from support.databases.upstream_backends import (
    ALICE,
    PLAIN,
    QUERIES,
    RECORD,
    mapper,
    record,
    upstream,
)
from support.fakes.outcomes import outcome
from support.http.scripted_server import Said, http
from tornado_idv import (
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


def read(document: Any, query: Query, secrets: Sequence[str] = (), **options: Any) -> object:
    reader = ResponseReader(
        ResponseOptions.model_validate({**PLAIN, **options}),
        {},
        hints=False,
        credential=False,
        secrets=lambda: secrets,
    )
    headers = CIMultiDict({"Content-Type": "application/json"})
    return reader.read(query, Response(200, headers, json.dumps(document).encode()))


def reason(document: Any, query: Query = QUERIES[0], /, **options: Any) -> str:
    with pytest.raises(Broken) as caught:
        read(document, query, **options)
    return caught.value.reason


TOTAL = {"found_when": "total != `0`", "select": "items"}
TWO_STATEMENTS = {
    "a total, and no user": (TOTAL, {"total": 1, "items": []}, "is true, but select (items) gives"),
    "no total, and no user": (TOTAL, {"items": []}, "is true, but select (items) gives no user"),
    "no error, and no user": (
        {"found_when": "error != 'no user'", "select": "items"},
        {"items": []},
        "found_when (error != 'no user') is true, but select (items) gives no user",
    ),
    "found, and all are left out": (
        {"found_when": "total != `0`", "select": "items[?state == 'active']"},
        {"total": 1, "items": [RECORD]},
        "gives no user",
    ),
    "no total, and the user": (
        TOTAL,
        {"total": 0, "items": [RECORD]},
        "found_when (total != `0`) is false, but select (items) gives a user",
    ),
    "not found, and the user": (
        {"found_when": "found", "select": "user"},
        {"found": False, "user": RECORD},
        "found_when (found) is false, but select (user) gives a user",
    ),
    "no total, and the user, below one member": (
        {"found_when": "hits.total != `0`", "select": "hits.hits"},
        {"hits": {"total": 0, "hits": [RECORD]}},
        "is false, but",
    ),
    "no total, and the user, in one condition": (
        {"found_when": "total != `0` && items", "select": "items"},
        {"total": 0, "items": [RECORD]},
        "is false, but",
    ),
    "no total, and a disabled user": (
        {**TOTAL, "not_known_when": "state == 'disabled'"},
        {"total": 0, "items": [{**RECORD, "state": "disabled"}]},
        "is false, but",
    ),
}


@pytest.mark.parametrize(
    ("options", "document", "said"), TWO_STATEMENTS.values(), ids=TWO_STATEMENTS
)
def test_statements_that_contradict_each_other_are_broken(
    options: dict[str, Any], document: Any, said: str
) -> None:
    for query in QUERIES:
        assert said in reason(document, query, **options)


def test_statements_about_the_owner_that_contradict_each_other_are_broken() -> None:
    """The first response of two, which holds an id alone."""
    two_steps = mapper(id="owner", **TOTAL)
    for document in ({"total": 0, "items": [{"owner": "7"}]}, {"total": 1, "items": []}):
        with pytest.raises(Broken, match="found_when"):
            two_steps.id(QUERIES[1], document)
    assert two_steps.id(QUERIES[1], {"total": 0, "items": []}) is None


DISABLED = {"not_known_when": "error == 'no user' || state == 'disabled'"}
GONE = record(state="disabled")
OLD = record(state="disabled", plan=None, id=1)


@pytest.mark.parametrize(
    ("options", "document", "expected"),
    [
        ({}, GONE, None),
        ({}, record(state="active"), ALICE),
        ({}, RECORD, ALICE),
        ({}, record(plan=None, state="disabled"), None),
        ({"select": "items"}, {"items": [GONE]}, None),
        ({"select": "items"}, {"items": [GONE, RECORD, OLD]}, ALICE),
        ({"select": "items", "pick": "first"}, {"items": [GONE, RECORD]}, ALICE),
        (
            {"select": "items", "match": "echo"},
            {"items": [record(login="bob", card="9"), GONE, record(login="al", card="8")]},
            None,
        ),
        ({"select": "items", "check_echo": "false"}, {"items": [{"state": "disabled"}]}, None),
        ({"select": "items"}, {"items": [RECORD, RECORD, GONE]}, "more than one user"),
        ({}, record(state="disabled", login="bob", card="9"), "for a user other"),
        ({}, record(state="disabled", login=None, card=None), "is missing"),
    ],
)
def test_user_whose_record_says_so_is_not_known(
    options: dict[str, Any], document: Any, expected: User | str | None
) -> None:
    """Such as a disabled one: if it is the record of the requested user."""
    for query in QUERIES:
        if isinstance(expected, str):
            assert expected in reason(document, query, **DISABLED, **options)
        else:
            assert mapper(**DISABLED, **options).user(query, document) == expected


def test_disabled_user_without_a_card_is_not_known_by_nickname() -> None:
    assert mapper(**DISABLED).user(QUERIES[0], record(state="disabled", card=None)) is None


@pytest.mark.parametrize(
    "condition",
    ["error != 'busy'", "!error", "contains(message, 'no user')", "@", "type(@) == 'object'"],
)
def test_condition_on_other_members_leaves_users_known(condition: str) -> None:
    """It is meant for the body of a 404, and the record has none of its members."""
    assert mapper(not_known_when=condition).user(QUERIES[0], RECORD) == ALICE


def test_condition_that_does_not_fit_the_record_is_an_error() -> None:
    assert "does not fit" in reason(record(roles=5), not_known_when="contains(roles, 'none')")


def test_condition_on_a_record_reads_what_is_around_it() -> None:
    document = {"user": RECORD, "gone": ["7"]}
    options = {"select": "user", "not_known_when": "contains($root.gone, to_string(id))"}
    assert mapper(**options).user(QUERIES[0], document) is None
    assert mapper(**options).user(QUERIES[0], {**document, "gone": []}) == ALICE


BUSY = {"ok": False, "error": {"code": "BUSY", "message": "slow down, alice with 40001234"}}


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"unavailable_when": "error.code == 'BUSY'"}, Unavailable, "(unavailable_when)"),
        ({"broken_when": "error.code == 'BUSY'"}, Broken, "(broken_when)"),
        (
            {"unavailable_when": "!ok", "error": "error.message"},
            Unavailable,
            "(unavailable_when): slow down, … with …",
        ),
        ({"unavailable_when": "!ok", "error": "length(error)"}, Unavailable, "(unavailable_when)"),
        ({"unavailable_when": "!ok", "error": "error.no"}, Unavailable, "(unavailable_when)"),
    ],
)
def test_error_with_status_200_is_no_missing_user(
    options: dict[str, Any], kind: type[LookupFailed], said: str
) -> None:
    """Whatever ``found_when`` says; the message is masked, and for the log alone."""
    with pytest.raises(kind) as caught:
        read(BUSY, QUERIES[0], found_when="ok", **options)
    assert caught.value.reason == f"the response is an error {said}"
    assert caught.value.counts_against_breaker


def test_message_of_an_error_is_bounded_and_printable() -> None:
    said = reason({"e": "x" * 500}, broken_when="e", error="e")
    assert said == f"the response is an error (broken_when): {'x' * 100}"
    said = reason({"e": "a\nb"}, broken_when="e", error="e")
    assert said.endswith("a\\nb")


def test_message_of_any_error_is_logged_without_values() -> None:
    said = "permission denied for table users"
    assert reason({"error": said}, select="data", error="error").endswith(f"record: {said}")
    assert reason({"e": "no such user: ALICE"}, broken_when="e", error="e").endswith("user: …")
    assert reason({"e": "no A.L-I C'E"}, broken_when="e", error="e").endswith(": no …")
    grouped = "4000 123, 400-012-341, 12 of 30"
    assert reason({"e": grouped}, broken_when="e", error="e").endswith(": …, …, 12 of 30")
    spaced = reason({"e": "400  012 - 341"}, ByCard("400012341"), broken_when="e", error="e")
    assert spaced.endswith("): …")
    long = f"token {'a1' * 495} alice"  # the message is cut within the value
    assert reason({"e": long}, broken_when="e", error="e").endswith(": token … …")
    mail = "for bob@people.example, 4000123412341234: key s3cret or pNq3x-4Zt6w8Yq1Lm0aB is invalid"
    masked = reason({"e": mail}, secrets=["s3c", "s3cret"], broken_when="e", error="e")
    assert masked.endswith(": for …, …: key … or … is invalid")


def test_encoded_values_in_a_message_are_masked() -> None:
    """The upstream quotes the URL of the request, with an API key in it."""
    query = ByNickname("Eve+x@people.example")
    for path in ("Eve%2Bx%40people.example", "eve%2bx%40people.example", "bob%40people.example"):
        url = f"no {path}?key=s3%2Fcr%2Bet: s3/cr+et"
        masked = reason({"e": url}, query, secrets=["s3/cr+et"], broken_when="e", error="e")
        assert masked.endswith(": no …?key=…: …")


def test_long_message_is_masked_quickly() -> None:
    before = time.process_time()
    reason({"e": "x" * 30_000 + "alic" * 7_500}, broken_when="e", error="e")
    dots = ByNickname("." * 60 + "&a")
    reason({"e": "." * 60 + "&amp;a"}, dots, broken_when="e", error="e")
    assert time.process_time() - before < 0.5


PAGE = {"items": [record(login="alice2", card="9")], "total": 30}


def test_one_page_of_several_is_no_missing_user_and_no_single_one() -> None:
    options = {"select": "items", "match": "echo"}
    complete = {**options, "complete_when": "total == length(items)"}
    assert mapper(**options).user(QUERIES[0], PAGE) is None
    one_page = (
        "complete_when (total == length(items)) is false: the response is one page of several, "
        "or an error"
    )
    assert reason(PAGE, **complete) == one_page
    page = {"items": [RECORD], "total": 30}
    assert reason(page, **complete) == one_page
    assert reason({"items": [RECORD]}, **complete) == one_page


def explained(tried: ResponseMapper, document: Any, query: Query = QUERIES[0]) -> list[Step]:
    """The steps of a lookup with this response."""
    steps: list[Step] = []
    tried.record_steps(steps)
    with suppress(LookupFailed):
        tried.user(query, document)
    return steps


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({}, ["found_when", "select"]),
        ({"items": []}, ["found_when", "select"]),
        ({"total": 1, "items": [RECORD]},
         ["found_when", "select", "card_number", "nickname", "profile_url"]),
    ],
)  # fmt: skip
def test_every_expression_up_to_the_one_that_decides_is_explained(
    document: Any, names: list[str]
) -> None:
    tried = mapper(found_when="total", select="items", profile_url="lower(no)")
    steps = explained(tried, document)
    assert [step.name for step in steps] == names
    if "card_number" in names:
        reason = "lower(no) does not fit the response: lower() is given null"
        assert steps[2] == Step("card_number", "0012", "card")
        assert steps[-1] == Step("profile_url", None, "lower(no)", reason)


@pytest.mark.parametrize(
    ("query", "names"), [(QUERIES[0], ["card_number", "plan"]), (QUERIES[1], ["nickname", "plan"])]
)
def test_expression_that_is_not_evaluated_is_not_explained(query: Query, names: list[str]) -> None:
    """Without `check_echo`, that of the requested value."""
    steps = explained(mapper(check_echo="false"), RECORD, query)
    assert [step.name for step in steps] == names


def test_lookups_beside_an_explained_one_are_not_recorded() -> None:
    options = ResponseOptions.model_validate(PLAIN)
    reader, steps = ResponseReader(options, {}, hints=False, credential=False), list[Step]()
    recording = reader.recording(steps)
    response = Response(200, CIMultiDict({"Content-Type": "application/json"}), b"{}")
    for each, recorded in ((reader, 0), (recording, 1)):
        with pytest.raises(Broken):
            each.read(QUERIES[0], response)
        assert len(steps) == recorded


def test_of_the_records_of_a_list_five_are_explained() -> None:
    page = {"items": [record(login=f"a{n}", card=str(n)) for n in range(90)]}
    for _ in range(2):
        steps = explained(mapper(select="items", match="echo"), page)
        assert [step.result for step in steps[1:]] == [f"a{n}" for n in range(5)]


def test_nothing_is_explained_that_is_not_evaluated() -> None:
    """A response that says "slow down", and one of several pages, may hold records of others."""
    tried = mapper(
        unavailable_when="busy", error="text", complete_when="total == `1`", select="items"
    )
    page = {"items": [RECORD], "total": 9}
    steps = [step.name for step in explained(tried, {**page, "busy": True})]
    assert steps == ["unavailable_when"]
    steps = [step.name for step in explained(tried, page)]
    assert steps == ["unavailable_when", "complete_when"]
    broken = mapper(broken_when="lower(busy)", select="items")
    assert [step.name for step in explained(broken, page)] == ["broken_when"]


def test_condition_on_the_record_is_explained() -> None:
    tried = mapper(select="items", not_known_when="state == 'disabled'")
    steps = explained(tried, {"items": [GONE]})
    assert steps[1] == Step("not_known_when", result=True, expression="state == 'disabled'")
    steps = explained(tried, {"items": [RECORD]})
    assert steps[1] == Step(
        "not_known_when", result=False, expression="state == 'disabled'", missing=("state",)
    )
    assert [step.name for step in steps[2:]] == ["card_number", "nickname", "plan"]


@pytest.mark.parametrize(
    ("expression", "document", "missing"),
    [
        ("data.user", {"data": {}}, ["data.user"]),
        ("data.user", {}, ["data.user"]),
        ("data.user", {"data": {"user": None}}, []),
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


RECIPES = Path(idv_upstream.__file__).with_name("RECIPES.md").read_text(encoding="utf-8")
EXTENSION = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
SCIM_ALICE = {"userName": "alice", "userType": "Free", EXTENSION: {"employeeNumber": "0012"}}


def recipe(title: str) -> dict[str, Any]:
    """Return the backend of a recipe, without its server and credential."""
    section = RECIPES.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (entry,) = re.findall("^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (backend,) = yaml_loader.read(entry.encode(), "RECIPES.md")["backends"]
    return {name: backend[name] for name in ("by_nickname", "by_card", "response", "status")}


@pytest.mark.parametrize(
    ("title", "document", "expected"),
    [
        ("SCIM 2.0", {"totalResults": 1, "Resources": [SCIM_ALICE]}, "found"),
        ("SCIM 2.0", {"totalResults": 0, "Resources": []}, "not found"),
        ("SCIM 2.0", {"totalResults": 0}, "not found"),
        ("SCIM 2.0", {"totalResults": 1, "Resources": []}, "broken: found_when"),
        ("SCIM 2.0", {"totalResults": 0, "Resources": [SCIM_ALICE]}, "broken: found_when"),
        ("SCIM 2.0", {"totalResults": 1}, "broken: select"),
        ("SCIM 2.0", {"Resources": []}, "broken: found_when"),
        ("GraphQL", {"data": {"found": []}}, "not found"),
        ("GraphQL", {"data": {"fund": []}}, "broken: select"),
        ("GraphQL", {"data": {"found": None}}, "broken: select"),
        ("GraphQL", {"data": {"found": []}, "errors": [{"message": "no"}]}, "broken: the response"),
        (
            "PostGraphile",
            {"data": {"found": {"nodes": []}, "witness": {"login": "w"}}},
            "not found",
        ),
        ("PostGraphile", {"data": {"found": {"nodes": []}, "witness": None}}, "broken: the resp"),
        ("PostGraphile", {"data": {"found": None, "witness": {"login": "w"}}}, "broken: select"),
        ("Directus", {"data": [], "meta": {"total_count": 9, "filter_count": 0}}, "not found"),
        ("Directus", {"data": [], "meta": {"filter_count": 0}}, "broken: the response"),
        ("Directus", {"data": [], "meta": {"total_count": 9, "filter_count": 1}}, "broken: "),
    ],
)
async def test_recipe_believes_no_contradiction(title: str, document: Any, expected: str) -> None:
    async with upstream(http(200, json.dumps(document).encode()), **recipe(title)) as (_, backend):
        for query in QUERIES:
            assert (await outcome(backend, query)).startswith(expected)


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
