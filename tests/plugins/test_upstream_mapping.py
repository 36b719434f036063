"""The mapping of a response: to a user, to "not found", or to an error."""

from __future__ import annotations

import json
import re
from typing import Any

import jmespath
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jmespath.visitor import Options
from pydantic import ValidationError

from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import Outcome, ResponseOptions, outcome
from idv_upstream.response.raw import decode_json
from support.databases.upstream_backends import ALICE, PLAIN, QUERIES, RECORD, mapper, record
from tornado_idv import Broken, ByCard, ByNickname, Query, User
from tornado_idv.kit.mapping import AllFunctions, Expression


def reason(document: Any, query: Query = QUERIES[0], /, **options: Any) -> str:
    with pytest.raises(Broken) as caught:
        mapper(**options).user(query, document)
    return caught.value.reason


ECHO = {"select": "items", "match": "echo"}
FOUND = {
    "plain": ({}, RECORD, ALICE),
    "with @": ({}, record(login="@alice"), ALICE),
    "list of one": ({"select": "items"}, {"items": [RECORD]}, ALICE),
    "object": ({"select": "data.user"}, {"data": {"user": RECORD}}, ALICE),
    "first of many": ({"select": "@", "pick": "first"}, [RECORD, record(login="bob")], ALICE),
    "found": ({"found_when": "id"}, RECORD, ALICE),
    "0 is true": ({"found_when": "id"}, record(id=0), ALICE),
    "number of cards": ({"card_number": "to_string(card)"}, record(card=12), "12"),
    "kept case": ({"nickname": "lower(login)"}, record(login="ALICE"), ALICE),
    "without prefix": ({"nickname": "trim_prefix(login, 'EX-')"}, record(login="EX-alice"), ALICE),
    "without suffix": ({"nickname": "trim_suffix(mail, '@x')"}, record(mail="alice@x"), ALICE),
    "part": ({"plan": "split(path, '/') | [1]"}, record(path="a/Free/b"), ALICE),
    "replaced": ({"card_number": "replace(card, '-', '')"}, record(card="00-12"), ALICE),
    "outside of the record": (
        {"select": "data", "plan": "$root.included[0].plan"},
        {"data": RECORD, "included": [{"plan": "Free"}]},
        ALICE,
    ),
    "outside of many records": (
        {**ECHO, "plan": "$root.plan"},
        {"items": [record(login="bob", card="8"), RECORD], "plan": "Free"},
        ALICE,
    ),
    "text that is no root": ({"plan": {"path": "no || '$root'"}}, RECORD, "0012"),
    "echo of many": (
        {"select": "items", "match": "echo"},
        {"items": [record(login="alice2", card="7"), RECORD, record(login="malice", card="8")]},
        ALICE,
    ),
    "echo in two cases": (ECHO, {"items": [record(login="Alice", card="9"), RECORD]}, ALICE),
    "default for a number that is missing": (
        {"plan": {"path": "to_string(level)", "default": "Free"}},
        RECORD,
        ALICE,
    ),
    "complete": (
        {"select": "items", "complete_when": "total == length(items)"},
        {"items": [RECORD], "total": 1},
        ALICE,
    ),
    "no error": ({"unavailable_when": "busy", "broken_when": "refused"}, RECORD, ALICE),
    "const": ({"plan": {"const": "Free"}}, RECORD, ALICE),
    "path": ({"plan": {"path": "id || plan"}}, record(id=None), ALICE),
    "default for null": ({"plan": {"path": "no", "default": "Free"}}, RECORD, ALICE),
    "mapped text": ({"plan": {"path": "p", "value_map": {"a": "Free"}}}, record(p="a"), ALICE),
    "mapped number": ({"plan": {"path": "p", "value_map": {"1": "Free"}}}, record(p=1), ALICE),
    "mapped true": ({"plan": {"path": "p", "value_map": {"true": "Free"}}}, record(p=True), ALICE),
    "mapped null": ({"plan": {"path": "p", "value_map": {"null": "Free"}}}, RECORD, ALICE),
    "mapped default": (
        {"plan": {"path": "p", "value_map": {"1": "Pro"}, "default": "Free"}},
        RECORD,
        ALICE,
    ),
    "profile": (
        {"profile_url": "links.self"},
        record(links={"self": "https://x"}),
        User("Free", "0012", "alice", "https://x"),
    ),
    "profile null": ({"profile_url": "url"}, record(url=None), ALICE),
    "profile mapped": ({"profile_url": {"path": "url", "value_map": {"a": "b"}}}, RECORD, ALICE),
}


@pytest.mark.parametrize(("options", "document", "user"), FOUND.values(), ids=FOUND.keys())
def test_user_is_read(options: dict[str, Any], document: Any, user: User | str) -> None:
    """The same for either query, except for what was asked."""
    if isinstance(user, str):
        found = mapper(**options).user(QUERIES[0], document)
        assert found is not None
        assert found.card_number == user
    else:
        for query in QUERIES:
            assert mapper(**options).user(query, document) == user


@pytest.mark.parametrize(
    ("options", "document"),
    [
        ({"select": "items"}, {"items": []}),
        ({"select": "items", "pick": "first"}, {"items": []}),
        (ECHO, {"items": [record(login="alice2", card="9")]}),
        ({"found_when": "total"}, {"total": None}),
        ({"found_when": "total"}, None),
        ({"found_when": "a"}, {"a": ""}),
        ({"found_when": "a"}, {"a": []}),
        ({"found_when": "total", "select": "no"}, {"total": False}),
        ({"found_when": "total", "select": "hits"}, {"total": False, "hits": []}),
        ({"found_when": "ok", "select": "user"}, {"ok": False, "user": {"login": "", "id": 0}}),
        ({"found_when": "ok", "select": "user"}, {"ok": False, "user": "no such user"}),
        ({"found_when": "ok", "select": "lower(user)"}, {"ok": False}),
        ({"found_when": "user.id != `7`", "select": "user"}, {"user": RECORD}),
        ({"found_when": "id != `7`"}, RECORD),
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


BROKEN = {
    "select null": ({"select": "items"}, {}, "select (items) gives null, not a record"),
    "select null of found": ({"select": "a", "found_when": "b"}, {"b": 1}, "(a) gives null"),
    "select text": ({"select": "id"}, record(id="canary"), "select (id) gives text, not a record"),
    "flattened null": ({"select": "[]"}, [None], "select ([]) gives null, not a record"),
    "two": ({"select": "items"}, {"items": [RECORD, RECORD]}, "more than one user for one query"),
    "list unselected": ({}, [RECORD], "a list, not a record; write select"),
    "empty list unselected": ({}, [], "a list, not a record; write select"),
    "null": ({}, None, "the response is null, not a record"),
    "another": (
        {},
        record(login="canary", card="13"),
        "response is for a user other than requested",
    ),
    "another case": (
        {},
        record(login="Alice", card="012"),
        "response is for a user other than requested",
    ),
    "missing": ({}, record(plan=None), "plan (plan) is missing"),
    "number of plan": ({}, record(plan=1), "plan (plan) is a number, not text; use to_string(plan"),
    "surrogate": ({}, record(plan="canary\ud800"), "plan (plan) has a lone surrogate"),
    "number of url": ({"profile_url": "id"}, RECORD, "profile_url (id) is a number"),
    "empty url": ({"profile_url": "u"}, record(u=""), "profile_url (u) is empty"),
    "card a number": (
        {},
        record(card=12),
        "card_number (card) is a number, not text; use to_string(",
    ),
    "card words": ({}, record(card="canary"), "card_number (card) contains characters other"),
    "card digits": ({}, record(card="٤٠"), "card_number (card) contains characters other"),
    "card empty": ({}, record(card=""), "card_number (card) contains characters other"),
    "no map": (
        {"plan": {"path": "id", "value_map": {"1": "Free"}}},
        RECORD,
        "plan (id) has a value that is not in value_map",
    ),
    "1 is not true": (
        {"plan": {"path": "id", "value_map": {"1": "Free"}}},
        record(id=True),
        "is not in value_map",
    ),
    "mapped list": (
        {"plan": {"path": "id", "value_map": {"1": "a"}, "default": "b"}},
        record(id=["canary"]),
        "plan (id) is a list, not text",
    ),
    "mapped missing": (
        {"plan": {"path": "no", "value_map": {"1": "a"}}},
        RECORD,
        "plan (no) is missing",
    ),
    "two at signs": ({}, record(login="@@alice", card="12"), "for a user other than requested"),
    "number that is missing": ({"plan": "to_string(level)"}, RECORD, "(to_string(level)) is miss"),
    "two echoes": (
        ECHO,
        {"items": [RECORD, record(id=8), record(login="bob", card="9")]},
        "more than one user",
    ),
    "echo that is missing": (ECHO, {"items": [{"plan": "Free"}]}, "is missing"),
    "without its prefix": (
        {"nickname": "trim_prefix(login, 'EX-')"},
        RECORD,
        "trim_prefix(login, 'EX-') does not fit the response",
    ),
    "without its suffix": (
        {"nickname": "trim_suffix(login, '@x')"},
        record(login="alice@y"),
        "trim_suffix(login, '@x') does not fit the response",
    ),
    "lower of null": (
        {"nickname": "lower(no)"},
        RECORD,
        "lower(no) does not fit the response: lower() is given null",
    ),
    "text and number": (
        {"found_when": "plan > `1`"},
        RECORD,
        "plan > `1` does not fit the response",
    ),
}


@pytest.mark.parametrize(("options", "document", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_wrong_record_is_broken(options: dict[str, Any], document: Any, said: str) -> None:
    """The reason says where it is wrong, and never what was there."""
    for query in QUERIES:
        reported = reason(document, query, **options)
        assert said in reported
        assert "canary" not in reported


@pytest.mark.parametrize("nickname", ["", "@", "@@ a", "a b", "é", "a\n", "\x7f", "\ud800"])
def test_impossible_nickname_is_broken(nickname: str) -> None:
    assert "nickname (login)" in reason(record(login=nickname), QUERIES[1])


@pytest.mark.parametrize("missing", ["nickname", "card_number"])
def test_without_check_echo_the_requested_value_is_used(missing: str) -> None:
    """Its expression may be missing, and is not evaluated if it is there."""
    query = QUERIES[missing == "card_number"]
    reported = {name: path for name, path in PLAIN.items() if name != missing}
    options = ResponseOptions.model_validate({**reported, "check_echo": "false"})
    assert ResponseMapper(options).user(query, RECORD) == ALICE
    ignored = {PLAIN[missing]: 5}
    assert mapper(check_echo="false").user(query, {**RECORD, **ignored}) == ALICE


def test_not_known_when_must_hold_for_the_body() -> None:
    """A page of a wrong address is not taken for "not known"."""
    assert mapper().is_not_known({"any": "thing"})
    strict = mapper(not_known_when="code == 'no'")
    assert strict.is_not_known({"code": "no"})
    assert not strict.is_not_known({"code": "yes"})
    assert not strict.is_not_known(None)
    with pytest.raises(Broken, match="does not fit"):
        mapper(not_known_when="length(@)").is_not_known(5)


WRONG = {
    "empty": ("", "it is empty"),
    "blank": (" ", "is incomplete"),
    "incomplete": ("items[?a ==", "items[?a == is incomplete"),
    "one =": ("a = 'b'", "a = 'b' is wrong at column 3; compare with =="),
    "number": ("total > 0", "is wrong at column 9; a number stands in backquotes, like `0`"),
    "dash": ("first-name", "at column 6; a name with a dash stands in double quotes"),
    "JSONPath": ("$.items", "at column 1; leave $ out"),
    "old literal": ("a == `b`", "has text in backquotes; write it in single quotes"),
    "two dots": ("a..b", "is wrong at column 3"),
    "unclosed": ("a == 'b", "is wrong at column 6"),
    "deep": ("(" * 9999, "cannot be read"),
    "too long": ("|".join("a" * 5000), "cannot be read"),
    "negated member": ("!data.witness", "write !(data.witness) for !data.witness"),
    "negated within": ("errors || !data.a.b", "write !(data.a.b) for !data.a.b"),
    "negated quoted": ('!"the-data".a', 'write !("the-data".a)'),
    "negated with an index": ("!data[0].name", "write !(a.b), !(a == b)"),
    "negated list": ("!data[].name", "has the same result for every response"),
    "negated filter": ("!data[?a]", "has the same result for every response"),
    "negated root": ("!$root.data", "write !($root.data)"),
    "negated in brackets": ("(!data).witness", "has the same result for every response"),
    "negated in a pipe": ("!data | witness", "has the same result for every response"),
    "one pipe for two": ("!data | code == 'x'", "has the same result for every response"),
    "member of a comparison": ("(a == b).c", "has the same result for every response"),
    "element of a comparison": ("(a == b)[0]", "has the same result for every response"),
    "negated comparison": ("!status == 'ok'", "has the same result for every response"),
    "negated and not equal": ("!status != 'ok'", "has the same result for every response"),
    "negated and compared": ("!a == b.c", "has the same result for every response"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("where", ["found_when", "mapping"])
def test_wrong_expression_is_reported_with_its_column(text: str, said: str, where: str) -> None:
    options: dict[str, Any] = {"plan": {"path": text}} if where == "mapping" else {where: text}
    with pytest.raises(ValidationError) as caught:
        mapper(**options)
    (problem,) = caught.value.errors()
    assert said in problem["msg"]
    assert problem["loc"][0] == ("plan" if where == "mapping" else where)


@pytest.mark.parametrize("text", ["upper(a)", "length(a, b)", "not_null()"])
def test_wrong_call_of_a_function_is_reported_by_the_lookup(text: str) -> None:
    """Never as a user that is not known."""
    with pytest.raises(Broken, match=re.escape(f"{text} cannot be evaluated: ")):
        Expression(text).evaluate({"a": "x", "b": "y"})


@pytest.mark.parametrize(
    "text",
    [
        "a[1:2].b",
        "not_null(a, b, c)",
        "sort_by(a, &b)",
        "max(a[::2])",
        "!(a.b)",
        "!a[0]",
        "!a && b.c",
        "!a == !b",
        "!a == `true`",
        "!contains(a, 'x')",
        "!a | to_string(@)",
        "!(a.b) || c.d",
    ],
)
def test_valid_expression_is_accepted(text: str) -> None:
    assert Expression(text).text == text


def test_wrong_mapping_is_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        ResponseOptions.model_validate(
            {
                "plan": {},
                "nickname": {"path": "a", "const": "b"},
                "card_number": {"const": "1", "value_map": {"a": "b"}},
                "profile_url": [],
                "pick": "any",
                "colour": "blue",
            }
        )
    reported = {problem["loc"]: problem["msg"] for problem in caught.value.errors()}
    assert reported == {
        ("plan", "mapping"): "Value error, a field needs a source; write path or const",
        ("nickname", "mapping", "const"): (
            "Value error, const excludes all other options; write const alone, or remove const"
        ),
        ("card_number", "mapping", "const"): (
            "Value error, const excludes all other options; write const alone, or remove const"
        ),
        ("profile_url", "mapping"): reported["profile_url", "mapping"],
        ("pick",): "Input should be 'one' or 'first'",
        ("colour",): "Extra inputs are not permitted",
    }


def test_echo_in_another_case_and_of_another_form_is_no_missing_user() -> None:
    page = {"items": [record(login="Alice")]}
    text = "response is for a nickname in another case: see identifiers.nickname_case"
    assert reason(page, **ECHO) == text
    page, numbers = {"items": [record(card=12)]}, {**ECHO, "card_number": "to_string(card)"}
    text = "response is for this card number without its leading zeros"
    assert reason(page, ByCard("0012"), **numbers) == text
    assert mapper(**numbers).user(ByCard("0123"), page) is None
    page = {"items": [record(card="people/0")]}
    text = "a wrong record: card_number (card) contains characters other than digits"
    assert reason(page, QUERIES[1], **ECHO) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match": "echo"}, "match: echo needs select"),
        ({**ECHO, "check_echo": "false"}, "match: echo needs select"),
        ({"plan": "&plan"}, "is an expression reference"),
        ({"found_when": "&plan"}, "is an expression reference"),
        ({"found_when": " || ".join(["a"] * 3000)}, "not a JMESPath expression"),
    ],
    ids=["echo of no list", "unchecked echo", "reference", "condition", "endless"],
)
def test_wrong_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        mapper(**options)


def test_missing_fields_are_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        ResponseOptions.model_validate({"plan": "plan"})
    reported = [(problem["loc"], problem["type"]) for problem in caught.value.errors()]
    assert reported == [(("card_number",), "missing"), (("nickname",), "missing")]


texts = st.sampled_from(["", "a", "b", "ok", "alice", "@alice", "0012", "é", "\ud800"])
scalars = st.none() | st.booleans() | texts | st.sampled_from([0, 1, -1, 12, 0.0, 1.0, 1.5, 2**70])
names = st.sampled_from(["a", "b", "c", "items", "plan", "card", "login"])
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner), max_leaves=9
)

FORMS = [
    "a",
    "a.b",
    "@",
    '"a"',
    "`1`",
    "a == 'ok'",
    "a == b",
    "a > `0`",
    "a && b",
    "a || b",
    "!a",
    "a == 'ok' && @",
    "lower(a)",
    "to_string(a)",
    "contains(a, b)",
    "items[?a == 'ok'].b",
    "items[].a",
    "*.a",
    "[a, b]",
    "{a: b}",
    "a | b",
    "sort_by(items, &a)",
    "a.length(b)",
]
EXPRESSIONS = [(Expression(text), jmespath.compile(text)) for text in FORMS]


@settings(max_examples=200, deadline=None)
@given(document=documents)
def test_expressions_give_what_the_library_gives(document: Any) -> None:
    options = Options(custom_functions=AllFunctions())
    for ours, theirs in EXPRESSIONS:
        try:
            wanted = repr(theirs.search(document, options))
        except (ValueError, TypeError):
            with pytest.raises(Broken):
                ours.evaluate(document)
        else:
            assert repr(ours.evaluate(document)) == wanted


LEAVE_OUT = [
    "items[].user",
    "items[*].user",
    "hits.hits[]._source",
    "items[?a == 'b'].user",
    "*.user",
    "items[:2].user",
]


@pytest.mark.parametrize("select", LEAVE_OUT)
def test_select_that_drops_records_is_rejected(select: str) -> None:
    """A list that records of another shape were dropped from reads as "not found"."""
    with pytest.raises(ValidationError, match="leaves out records with an unexpected structure"):
        mapper(select=select)


@pytest.mark.parametrize("select", ["items[]", "items[?id == 'x']", "items[:2]", "items[0].user"])
def test_whole_records_may_be_selected(select: str) -> None:
    assert ResponseOptions.model_validate({**PLAIN, "select": select}).select == select


@settings(max_examples=200, deadline=None)
@given(document=documents, fields=st.tuples(*[st.sampled_from(FORMS)] * 5))
def test_no_document_raises_anything_but_broken(document: Any, fields: tuple[str, ...]) -> None:
    """Whatever it holds, and whatever expressions are applied to it."""
    assume("items[].a" != fields[0] != "items[?a == 'ok'].b" and fields[0] != "*.a")
    names = ("select", "found_when", "plan", "nickname", "card_number")
    mapped = {"path": fields[0], "value_map": {"1": "a", "true": "b", "null": "c"}}
    for options in ({}, dict(zip(names, fields, strict=True)), {"plan": mapped, "select": "@"}):
        tried = mapper(**options)
        for query in QUERIES:
            try:
                user = tried.user(query, document)
            except Broken as error:
                assert not re.search("alice|0012", error.reason)  # noqa: PT017 - one of two good ends
                continue
            assert user is None or query in (ByNickname(user.nickname), ByCard(user.card_number))


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
    assert {outcome(status, {statuses[0]: Outcome.READ}) for status in statuses} <= {
        meant,
        Outcome.READ,
    }


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
        ("has_bits(a, `2`)", {"a": 512}, False),
        ("has_bits(a, `3`)", {"a": 1}, False),
        ("has_bits(a, `3`)", {"a": "2"}, False),
        ("has_bits(a, `3`)", {"a": 3}, True),
        ("has_bits(a, `3`)", {"a": "7"}, True),
        ("guid(a)", {"a": bytes(range(16))}, "03020100-0504-0706-0809-0a0b0c0d0e0f"),
    ],
)
def test_functions_for_ldap(text: str, value: dict[str, Any], result: object) -> None:
    assert Expression(text).evaluate(value) == result


@pytest.mark.parametrize(
    ("value", "result"), [(None, None), ("a", "a"), (7, "7"), (True, "true"), ([1, "a"], '[1,"a"]')]
)
def test_null_is_no_text(value: object, result: str | None) -> None:
    """The text "null" would be a plan, or the id in a second request."""
    assert Expression("to_string(a)").evaluate({"a": value}) == result
