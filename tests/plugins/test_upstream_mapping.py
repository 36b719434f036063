"""The mapping of a response: to a user, to "not found", or to an error."""

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import Outcome, ResponseOptions, outcome
from idv_upstream.response.raw import decode_json
from support.databases.upstream_backends import ALICE, PLAIN, QUERIES, RECORD, mapper, record
from tornado_idv import Broken, ByCard, ByNickname, Query, User
from tornado_idv.kit.mapping import Expression


def reason(document: Any, query: Query = QUERIES[0], /, **options: Any) -> str:
    with pytest.raises(Broken) as caught:
        mapper(**options).user(query, document)
    return caught.value.reason


ECHO = {"select": "items", "match": "echo"}
MAPPED = {"path": "p", "value_map": {"a": "Free", "1": "Pro", "true": "Free", "null": "Free"}}
FOUND: dict[str, tuple[dict[str, Any], Any]] = {
    "with @": ({}, record(login="@alice")),
    "object": ({"select": "data.user"}, {"data": {"user": RECORD}}),
    "first of many": ({"select": "@", "pick": "first"}, [RECORD, record(login="bob")]),
    "0 is true": ({"found_when": "id"}, record(id=0)),
    "0.0 is true": ({"found_when": "id"}, record(id=0.0)),
    "in small letters": ({"nickname": "lower(login)"}, record(login="ALICE")),
    "without prefix": ({"nickname": "trim_prefix(login, 'EX-')"}, record(login="EX-alice")),
    "without suffix": ({"nickname": "trim_suffix(mail, '@x')"}, record(mail="alice@x")),
    "part": ({"plan": "split(path, '/') | [1]"}, record(path="a/Free/b")),
    "replaced": ({"card_number": "replace(card, '-', '')"}, record(card="00-12")),
    "outside of the record": (
        {"select": "data", "plan": "$root.included[0].plan"},
        {"data": RECORD, "included": [{"plan": "Free"}]},
    ),
    "outside of many records": (
        {**ECHO, "plan": "$root.plan"},
        {"items": [record(login="bob", card="8"), RECORD], "plan": "Free"},
    ),
    "no root": ({"plan": {"path": "no || '$root'", "value_map": {"$root": "Free"}}}, RECORD),
    "echo of many": (
        ECHO,
        {"items": [record(login="alice2", card="7"), RECORD, record(login="Alice", card="8")]},
    ),
    "complete": (
        {"select": "items", "complete_when": "total == length(items)"},
        {"items": [RECORD], "total": 1},
    ),
    "const": ({"plan": {"const": "Free"}}, RECORD),
    "default for null": ({"plan": {"path": "no", "default": "Free"}}, RECORD),
    "mapped text": ({"plan": MAPPED}, record(p="a")),
    "mapped true": ({"plan": MAPPED}, record(p=True)),
    "mapped null": ({"plan": MAPPED}, RECORD),
    "mapped default": ({"plan": {**MAPPED, "default": "Free"}}, record(p="b")),
    "no profile, mapped": ({"profile_url": {"path": "url", "value_map": {"a": "b"}}}, RECORD),
}


@pytest.mark.parametrize(("options", "document"), FOUND.values(), ids=FOUND.keys())
def test_user_is_read(options: dict[str, Any], document: Any) -> None:
    for query in QUERIES:
        assert mapper(**options).user(query, document) == ALICE


def test_profile_url_is_read() -> None:
    user = mapper(profile_url="links.self").user(QUERIES[0], record(links={"self": "https://x"}))
    assert user == User("Free", "0012", "alice", "https://x")


@pytest.mark.parametrize(
    ("options", "document"),
    [
        ({"select": "items"}, {"items": []}),
        (ECHO, {"items": [record(login="alice2", card="9")]}),
        ({"found_when": "total"}, {"total": None}),
        ({"found_when": "total"}, None),
        ({"found_when": "total", "select": "no"}, {"total": False}),
        ({"found_when": "total", "select": "hits"}, {"total": False, "hits": []}),
        ({"found_when": "ok", "select": "user"}, {"ok": False, "user": {"login": "", "id": 0}}),
        ({"found_when": "ok", "select": "user"}, {"ok": False, "user": "no such user"}),
        ({"found_when": "ok", "select": "lower(user)"}, {"ok": False}),
        ({"found_when": "user.id != `7`", "select": "user"}, {"user": RECORD}),
        ({"not_known_when": "contains(f[].is, 'off')"}, record(f=[{"is": "off"}, {}])),
        (
            {"found_when": "n", "select": "items", "match": "echo"},
            {"n": True, "items": [record(login="alice2", card="9")]},
        ),
    ],
    ids=str,
)
def test_not_found_is_read(options: dict[str, Any], document: Any) -> None:
    for query in QUERIES:
        assert mapper(**options).user(query, document) is None


TOTAL = {"found_when": "total != `0`", "select": "items"}
BROKEN: dict[str, tuple[dict[str, Any], Any, str]] = {
    "select null": ({"select": "items"}, {}, "select (items) gives null, not a record"),
    "select text": ({"select": "id"}, record(id="canary"), "select (id) gives text, not a record"),
    "flattened null": ({"select": "[]"}, [None], "select ([]) gives null, not a record"),
    "two": ({"select": "items"}, {"items": [RECORD, RECORD]}, "more than one user for one query"),
    "list unselected": ({}, [], "a list, not a record; write select"),
    "null": ({}, None, "the response is null, not a record"),
    "another": ({}, record(login="Alice", card="012"), "response is for a user other than"),
    "missing": ({}, record(plan=None), "plan (plan) is missing"),
    "number of plan": ({}, record(plan=1), "plan (plan) is a number, not text; use to_string(plan"),
    "surrogate": ({}, record(plan="canary\ud800"), "plan (plan) has a lone surrogate"),
    "empty url": ({"profile_url": "u"}, record(u=""), "profile_url (u) is empty"),
    "card words": ({}, record(card="canary"), "card_number (card) contains characters other"),
    "card digits": ({}, record(card="٤٠"), "card_number (card) contains characters other"),
    "not in the map": ({"plan": MAPPED}, record(p="canary"), "a value that is not in value_map"),
    "mapped bytes": ({"plan": MAPPED}, record(p=b"canary"), "plan (p) is binary, not text"),
    "infinity": ({"plan": "has_bits(p, `1`)"}, record(p=1e999), "does not fit the response"),
    "guid of text": ({"plan": "guid(p)"}, record(p="canary of 16 chr"), "does not fit the resp"),
    "mapped list": ({"plan": MAPPED}, record(p=["canary"]), "plan (p) is a list, not text"),
    "two at signs": ({}, record(login="@@alice", card="12"), "for a user other than requested"),
    "two echoes": (
        ECHO,
        {"items": [RECORD, record(id=8), record(login="bob", card="9")]},
        "more than one user",
    ),
    "echo that is missing": (ECHO, {"items": [{"plan": "Free"}]}, "is missing"),
    "no prefix": ({"nickname": "trim_prefix(login, 'EX-')"}, RECORD, "'EX-') does not fit the res"),
    "no suffix": ({"nickname": "trim_suffix(login, '@x')"}, RECORD, "'@x') does not fit the resp"),
    "of null": ({"nickname": "lower(no)"}, RECORD, "lower(no) does not fit the response: lower()"),
    **{
        f"nickname {nickname!r}": ({}, record(login=nickname), "nickname (login)")
        for nickname in ("", "@", "a b", "é", "alice\n", "\x7f")
    },
    "one page of several": (
        {**ECHO, "complete_when": "total == length(items)"},
        {"items": [RECORD], "total": 30},
        "complete_when (total == length(items)) is false: the response is one page of several",
    ),
    "a total, and no user": (TOTAL, {"total": 1, "items": []}, "is true, but select (items) gives"),
    "no total, and the user": (
        TOTAL,
        {"total": 0, "items": [RECORD]},
        "found_when (total != `0`) is false, but select (items) gives a user",
    ),
    "text, and a root": ({"select": "id", "plan": "$root.p"}, record(id="canary"), "gives text"),
    "one of two": ({**TOTAL, "found_when": "n && items"}, {"n": False, "items": [RECORD]}, "false"),
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
}


@pytest.mark.parametrize(("options", "document", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_wrong_record_is_broken(options: dict[str, Any], document: Any, said: str) -> None:
    """The reason says where it is wrong, and never what was there."""
    for query in QUERIES:
        reported = reason(document, query, **options)
        assert said in reported
        assert "canary" not in reported


@pytest.mark.parametrize("missing", ["nickname", "card_number"])
def test_without_check_echo_the_requested_value_is_used(missing: str) -> None:
    """Its expression may be missing, and is not evaluated if it is there."""
    query = QUERIES[missing == "card_number"]
    reported = {name: path for name, path in PLAIN.items() if name != missing}
    options = ResponseOptions.model_validate({**reported, "check_echo": "false"})
    assert ResponseMapper(options).user(query, RECORD) == ALICE
    ignored = {PLAIN[missing]: 5}
    assert mapper(check_echo="false").user(query, {**RECORD, **ignored}) == ALICE


WRONG = {
    "": "it is empty",
    "items[?a ==": "items[?a == is incomplete",
    "a = 'b'": "a = 'b' is wrong at column 3; compare with ==",
    "total > 0": "is wrong at column 9; a number stands in backquotes, like `0`",
    "first-name": "at column 6; a name with a dash stands in double quotes",
    "$.items": "at column 1; leave $ out",
    "a == `b`": "has text in backquotes; write it in single quotes",
    "a..b": "is wrong at column 3",
    "(" * 9999: "cannot be read",
    "|".join("a" * 5000): "cannot be read",
    " || ".join(["a"] * 3000): "not a JMESPath expression",
    "&plan": "is an expression reference",
    "!data.witness": "write !(data.witness) for !data.witness",
    "errors || !data.a.b": "write !(data.a.b) for !data.a.b",
    '!"the-data".a': 'write !("the-data".a)',
    "!data[0].name": "write !(a.b), !(a == b)",
    "!data[].name": "has the same result for every response",
    "(!data)[*]": "has the same result for every response",
    "!a == b": "has the same result for every response",
    "!a == `1`": "has the same result for every response",
    "!$root.data": "write !($root.data)",
    "(!data).witness": "has the same result for every response",
    "!data | code == 'x'": "has the same result for every response",
    "(a == b).c": "has the same result for every response",
    "(a == b)[0]": "has the same result for every response",
    "!status == 'ok'": "has the same result for every response",
    "!a == b.c": "has the same result for every response",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=[each[:20] for each in WRONG])
def test_wrong_expression_is_reported_with_its_column(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Expression(text)


NEGATED = ("!(a.b)", "!a[0]", "!a == !b", "!a == `true`", "!contains(a, 'x')", "!a | to_string(@)")


@pytest.mark.parametrize("text", ["upper(a)", "length(a, b)", "not_null()"])
def test_wrong_call_of_a_function_is_reported_by_the_lookup(text: str) -> None:
    with pytest.raises(Broken, match=re.escape(f"{text} cannot be evaluated: ")):
        Expression(text).evaluate({"a": "x", "b": "y"})


@pytest.mark.parametrize("text", ["not_null(a, b, c)", "sort_by(a, &b)", "max(a[::2])", *NEGATED])
def test_valid_expression_is_accepted(text: str) -> None:
    assert Expression(text).text == text


def test_wrong_mapping_is_reported() -> None:
    alone = "const excludes all other options; write const alone, or remove const"
    for source, reported in (
        ({}, "a field needs a source; write path or const"),
        ({"path": "a", "const": "b"}, alone),
        ({"const": "1", "value_map": {"a": "b"}}, alone),
        ([], "valid dictionary"),
        ("a..b", "not a JMESPath expression: a..b is wrong at column 3"),
    ):
        with pytest.raises(ValidationError, match=re.escape(reported)):
            mapper(plan=source)


def test_echo_in_another_case_and_of_another_form_is_no_missing_user() -> None:
    page = {"items": [record(login="Alice")]}
    text = "response is for a nickname in another case: see identifiers.nickname_case"
    for query in (QUERIES[0], ByNickname("ALICE")):
        assert reason(page, query, **ECHO) == text
    page, numbers = {"items": [record(card=12)]}, {**ECHO, "card_number": "to_string(card)"}
    text = "response is for this card number without its leading zeros"
    assert reason(page, ByCard("0012"), **numbers) == text
    assert reason({"items": [record(card=0)]}, ByCard("00"), **numbers) == text
    assert mapper(**numbers).user(ByCard("0123"), page) is None
    page = {"items": [record(card="people/0")]}
    text = "a wrong record: card_number (card) contains characters other than digits"
    assert reason(page, QUERIES[1], **ECHO) == text


@pytest.mark.parametrize("options", [{"match": "echo"}, {**ECHO, "check_echo": "false"}])
def test_echo_without_a_list_or_a_check_is_rejected(options: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="match: echo needs select"):
        mapper(**options)


def test_missing_fields_are_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        ResponseOptions.model_validate({"plan": "plan"})
    reported = [(problem["loc"], problem["type"]) for problem in caught.value.errors()]
    assert reported == [(("card_number",), "missing"), (("nickname",), "missing")]


@pytest.mark.parametrize(
    "select", ["items[].user", "items[*].user", "items[?a == 'b'].user", "*.user", "items[:2].user"]
)
def test_select_that_drops_records_is_rejected(select: str) -> None:
    """A list that records of another shape were dropped from reads as "not found"."""
    with pytest.raises(ValidationError, match="leaves out records with an unexpected structure"):
        mapper(select=select)


@pytest.mark.parametrize("select", ["items[]", "items[?id == 'x']", "items[:2]", "items[0].user"])
def test_whole_records_may_be_selected(select: str) -> None:
    assert mapper(select=select)


def test_json_is_strict_and_128_deep() -> None:
    assert decode_json(b"[" * 128 + b"]" * 128) == json.loads("[" * 128 + "]" * 128)
    for body in (b"", b"[" * 129 + b"]" * 129, b'{"a": 1, "a": 2}', b"NaN", b"{} {}", b"<html>"):
        with pytest.raises(Broken, match=r"^a response that is not valid JSON$"):
            decode_json(body)


@pytest.mark.parametrize(
    ("statuses", "meant"),
    [
        ((200,), Outcome.READ),
        ((204, 404, 410), Outcome.NOT_KNOWN),
        ((408, 429, 500, 502, 503, 504, 599, 999), Outcome.UNAVAILABLE),
        ((401, 403, 407), Outcome.BROKEN),
        ((101, 201, 206, 301, 302, 304, 307, 308, 400, 405, 418, 422), Outcome.BROKEN),
    ],
)
def test_status_has_an_outcome(statuses: tuple[int, ...], meant: Outcome) -> None:
    assert {outcome(status, {}) for status in statuses} == {meant}


def test_outcome_of_a_status_may_be_overridden() -> None:
    """Of that status alone, and with 404 that of a status which means the same."""
    overrides = {400: Outcome.NOT_KNOWN, 404: Outcome.BROKEN}
    assert outcome(400, overrides) is Outcome.NOT_KNOWN
    assert {outcome(status, overrides) for status in (204, 404, 410)} == {Outcome.BROKEN}
    assert outcome(410, {**overrides, 410: Outcome.NOT_KNOWN}) is Outcome.NOT_KNOWN
    assert outcome(404, {410: Outcome.BROKEN}) is Outcome.NOT_KNOWN


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ("has_bits(a, `2`)", {"a": "514"}, True),
        ("has_bits(a, `3`)", {"a": 1}, False),
        ("trim_suffix(a, '')", {"a": "b"}, "b"),
        ("guid(a)", {"a": bytes(range(16))}, "03020100-0504-0706-0809-0a0b0c0d0e0f"),
    ],
)
def test_functions_for_ldap(text: str, value: dict[str, Any], result: object) -> None:
    assert Expression(text).evaluate(value) == result


@pytest.mark.parametrize(
    ("value", "result"), [(None, None), ("a", "a"), (True, "true"), ([1, "a"], '[1,"a"]')]
)
def test_null_is_no_text(value: object, result: str | None) -> None:
    """The text "null" would be a plan, or the id in a second request."""
    assert Expression("to_string(a)").evaluate({"a": value}) == result


# Users who are not known by their record

DISABLED = {"not_known_when": "error == 'no user' || state == 'disabled'"}
GONE = record(state="disabled")
OLD = record(state="disabled", plan=None, id=1)


@pytest.mark.parametrize(
    ("options", "document", "expected"),
    [
        ({}, GONE, None),
        ({}, record(state="active"), ALICE),
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


@pytest.mark.parametrize(
    "condition", ["error != 'busy'", "contains(message, 'no user')", "@", "type(@) == 'object'"]
)
def test_condition_on_other_members_leaves_users_known(condition: str) -> None:
    """It is meant for the body of a 404, and the record has none of its members."""
    assert mapper(not_known_when=condition).user(QUERIES[0], RECORD) == ALICE


def test_disabled_user_without_a_card_is_not_known_by_nickname() -> None:
    assert mapper(**DISABLED).user(QUERIES[0], record(state="disabled", card=None)) is None


def test_condition_on_a_record_reads_what_is_around_it() -> None:
    document = {"user": RECORD, "gone": ["7"]}
    options = {"select": "user", "not_known_when": "contains($root.gone, to_string(id))"}
    assert mapper(**options).user(QUERIES[0], document) is None
    assert mapper(**options).user(QUERIES[0], {**document, "gone": []}) == ALICE
