"""Requests to an upstream: a value stays within the position of its placeholder."""

import json
import re
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from yarl import URL

from idv_upstream.request.options import CardRequest, NicknameRequest, RequestOptions
from idv_upstream.request.template import Request
from tornado_idv import Broken, ByCard, ByNickname, Query

SITE = "https://profiles.example"
ALICE = ByNickname("alice")
CARD = ByCard("0012")
SPECIAL = "\"'\\/.%#?&;=+ @:{}[]\r\n\t\0\x7fé\N{GRINNING FACE}\ud800\udc00٤"

well_formed = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True).filter(
    lambda nickname: nickname.strip(".")
)
hostile = st.one_of(
    st.text(st.sampled_from(SPECIAL + "ab"), max_size=12),
    st.text(st.characters(), max_size=12),
    st.sampled_from(["..", ".", "a/../b", "..\\", "%2e%2e", "a&b=c", 'x" or "1" eq "1', "' or '"]),
)
anything = well_formed | hostile
unhurried = settings(deadline=None)


def render(query: Query = ALICE, /, **options: Any) -> Request:
    kind: type[RequestOptions] = NicknameRequest if isinstance(query, ByNickname) else CardRequest
    return kind.model_validate(options).template(SITE).render(query.text.removeprefix("@"))


def is_sendable(value: str) -> bool:
    return bool(value) and not re.search("[\ud800-\udfff]", value)


def leads_elsewhere(value: str) -> bool:
    """Whether it has a segment of dots, also to those who cut segments at ``;?#`` and NUL."""
    parts = re.split(r"[/\\]", value)
    return any(re.split(r"[;?#\0]", part)[0] in {".", ".."} for part in parts)


@pytest.mark.parametrize(
    ("options", "query", "url"),
    [
        ({"url": "/people/{card_number}/"}, CARD, "/people/0012/"),
        ({"url": "/p?ä&a=1", "query": {"l": "@{nickname}"}}, ALICE, "/p?%C3%A4&a=1&l=%40alice"),
        ({"url": "HTTPS://[::1]?l={nickname}"}, ALICE, "HTTPS://[::1]/?l=alice"),
        ({"url": "/{{{nickname}}}/100%25/ü b"}, ALICE, "/%7Balice%7D/100%25/%C3%BC%20b"),
        ({"url": "/Users('{nickname}')"}, ByNickname("o'b"), "/Users('o%27%27b')"),
        (
            {"url": '/Users?filter=userName eq "{nickname}"&count=2'},
            ByNickname('a"b\\'),
            "/Users?filter=userName%20eq%20%22a%5C%22b%5C%5C%22&count=2",
        ),
        ({"url": "/{profile_site}/{card_number}"}, CARD, "/https%3A%2F%2Fprofiles.example/0012"),
        ({"url": "/{profile_url}"}, ALICE, "/https%3A%2F%2Fprofiles.example%2Fm%2Falice"),
        ({"url": "/p?%24top=1&$skip=a,%27", "query": {"$f": "{nickname}"}}, ALICE, None),
    ],
    ids=lambda value: value.get("url") if isinstance(value, dict) else "",
)
def test_url_is_rendered(options: dict[str, Any], query: Query, url: str | None) -> None:
    """Valid literals are kept; the rest is encoded for its position."""
    assert render(query, **options).url == (url or "/p?%24top=1&$skip=a,%27&%24f=alice")


@pytest.mark.parametrize(
    ("options", "method", "repeatable"),
    [
        ({}, "GET", True),
        ({"json": {}}, "POST", False),
        ({"form": {}}, "POST", False),
        ({"json": {"a": "b"}, "method": "GET"}, "GET", True),
        ({"method": "HEAD"}, "HEAD", True),
        ({"method": "POST", "repeatable": "true"}, "POST", True),
        ({"repeatable": "false"}, "GET", False),
    ],
)
def test_method_follows_from_the_body(
    options: dict[str, Any], method: str, *, repeatable: bool
) -> None:
    """Only safe methods are repeatable, unless configured."""
    asked = render(url="/{nickname}", **options)
    assert (asked.method, asked.repeatable) == (method, repeatable)


@pytest.mark.parametrize(
    ("options", "body", "kind"),
    [
        (
            {"json": {"filter": {"login": "@{nickname}"}, '{{"}}': ["plan", "{{}}"]}},
            b'{"filter": {"login": "@alice"}, "{\\"}": ["plan", "{}"]}',
            "application/json",
        ),
        (
            {"json": '{"login": "{nickname}", "limit": 1, "x": [null, true, 1.5], "100%": {}}'},
            b'{"login": "alice", "limit": 1, "x": [null, true, 1.5], "100%": {}}',
            "application/json",
        ),
        (
            {"form": {"login": "{nickname}", "a b": "c&d", "{{": "%"}},
            b"login=alice&a%20b=c%26d&%7B=%25",
            "application/x-www-form-urlencoded",
        ),
    ],
)
def test_body_is_rendered(options: dict[str, Any], body: bytes, kind: str) -> None:
    """Any string may have a placeholder; JSON as text may hold numbers."""
    asked = render(url="/p", **options)
    assert (asked.body, asked.headers) == (body, {"Content-Type": kind})


def test_content_type_may_be_configured() -> None:
    headers = {"content-type": "application/scim+json", "X-Site": "{profile_site}", "X": ""}
    sent = {**headers, "X-Site": SITE}
    assert render(url="/{nickname}", json="{}", headers=headers).headers == sent


@pytest.mark.parametrize(
    ("text", "value", "sent"),
    [
        ('"{nickname}"', 'a"b', r'"a\"b"'),
        ('"@{nickname}@x"', "a\\", r'"@a\\@x"'),
        ("'{nickname}'", "a'b", "'a''b'"),
        ("name eq 'x' or '{nickname}'", "'", "name eq 'x' or ''''"),
        ('{nickname} "x" "y" {nickname}', '"', '" "x" "y" "'),
        ("""it's "{nickname}" here""", "'\"", """it's "'\\"" here"""),
        ("""'{{"a": "{nickname}"}}'""", "'\"", """'{"a": "''\\""}'"""),
        ('"{nickname}', '"', '""'),
        ('''"{nickname} 'x' {nickname}"''', '"', r'''"\" 'x' \""'''),
        (r'"a\\{nickname}"', '"', r'"a\\\""'),
        (r'"\"" "{nickname}"', '"', r'"\"" "\""'),
    ],
)
def test_value_does_not_end_the_quotes_around_it(text: str, value: str, sent: str) -> None:
    url = render(ByNickname(value), url="/p", query={"q": text}).url
    assert parse_qsl(url.partition("?")[2]) == [("q", sent)]
    if not set(sent) & set('"\\'):
        assert render(ByNickname(value), url="/p", headers={"q": text}).headers == {"q": sent}
    body = render(ByNickname(value), url="/p", json=[text]).body or b""
    assert json.loads(body) == [sent]


@unhurried
@given(value=anything)
@example(value="..")
@example(value="a\\.")
def test_value_in_a_path_is_one_segment(value: str) -> None:
    """It is received unchanged, or rejected if it could lead to another path."""
    try:
        url = render(ByNickname(value), url="http://h.example:81/a/x{nickname}/b?c=d").url
    except Broken:
        assert not is_sendable(value) or leads_elsewhere(f"x{value}")
        return
    read = URL(url, encoded=True)
    before, segment, after = read.raw_path[1:].split("/")
    around = (read.host, read.port, read.user, read.raw_query_string)
    assert around == ("h.example", 81, None, "c=d")
    assert not leads_elsewhere(f"x{value}")
    assert (before, unquote(segment), after, read.raw_fragment) == ("a", f"x{value}", "b", "")
    assert re.fullmatch(r"[A-Za-z0-9._~%-]*", segment)


@unhurried
@given(value=anything)
@example(value="a/../b")
def test_value_in_a_query_or_body_is_read_back_unchanged(value: str) -> None:
    """With the parameters around it; between quotes it is one string of the filter language."""
    query = {"é&": "{nickname}", "d": 'login eq "{nickname}"', "s": "login eq '{nickname}'"}
    document = {"a": "1", "login": "<{nickname}>", "z": ["{nickname}"]}
    form = {"a": "1", "login": "<{nickname}>", "z": "&"}
    try:
        asked = render(
            ByNickname(value), url="http://h/p?a=1&u=x{nickname}", query=query, json=document
        )
        as_form = render(ByNickname(value), url="/p", form=form).body or b""
    except Broken:
        assert not is_sendable(value)
        return
    read = URL(asked.url, encoded=True)
    assert (read.host, read.raw_path, read.raw_fragment) == ("h", "/p", "")
    parameters = parse_qsl(read.raw_query_string, keep_blank_values=True)
    assert parameters == [*read.query.items()]
    *plain, (_, double), (_, single) = parameters
    assert plain == [("a", "1"), ("u", f"x{value}"), ("é&", value)]
    assert json.loads(double.removeprefix("login eq ")) == value
    text = single.removeprefix("login eq ")
    assert re.fullmatch("'(?:[^']|'')*'", text)
    assert text[1:-1].replace("''", "'") == value
    assert json.loads(asked.body or b"") == {"a": "1", "login": f"<{value}>", "z": [value]}
    members = parse_qsl(as_form.decode(), keep_blank_values=True)
    assert members == [("a", "1"), ("login", f"<{value}>"), ("z", "&")]


@unhurried
@given(value=anything)
def test_value_in_a_header_is_printable_or_rejected(value: str) -> None:
    """It cannot begin a second line, and nothing is stripped from it."""
    try:
        headers = render(ByNickname(value), url="/p", headers={"X-Login": "{nickname}"}).headers
    except Broken:
        assert not re.fullmatch("[!-~]([ -~]*[!-~])?", value)
        return
    assert headers == {"X-Login": value}
    assert re.fullmatch("[ -~]+", value)
    assert value == value.strip()


WRONG = {
    "no path": ({"url": "people/{nickname}"}, "url", "with one leading slash"),
    "no path, a query": ({"url": "?q={nickname}"}, "url", "with one leading slash"),
    "two slashes": ({"url": "//h/{nickname}"}, "url", "with one leading slash"),
    "another scheme": ({"url": "ftp://h/{nickname}"}, "url", "write http or https"),
    "user info": ({"url": "https://a:b@h/{nickname}"}, "url", "without user info"),
    "fragment": ({"url": "/p#{nickname}"}, "url", "a fragment (#) is not allowed"),
    "scheme": ({"url": "{nickname}://h/p"}, "url", "placeholders can only follow the host"),
    "host": ({"url": "https://{nickname}/p"}, "url", "or placeholders"),
    "dots": ({"url": "/a/../{nickname}"}, "url", "segments of dots"),
    "encoded dots": ({"url": "/a/%2E%2e/{nickname}"}, "url", "segments of dots"),
    "percent": ({"url": "/100%/{nickname}"}, "url", "write %25"),
    "unknown": ({"url": "/{card_number}"}, "url", "column 2; allowed here: {nickname}"),
    "lone brace": ({"url": "/{nickname"}, "url", "a lone { at column 2; write {{"),
    "lone closing": ({"url": "/nickname}"}, "url", "a lone } at column 10; write }}"),
    "nothing asked": ({"url": "/p/{profile_site}"}, "", "write the placeholder {nickname}"),
    "name in url": ({"url": "/p?{nickname}=a"}, "url", "only values can have placeholders"),
    **{
        f"encoded {quote}": ({"url": f"/p?q={quote}{{nickname}}"}, "url", "write quotes and backs")
        for quote in ("%22", "%27", "%5c")
    },
    "quotes within": (
        {"url": "/p", "query": {"q": r'"{{\"a\": \"{nickname}\"}}"'}},
        "query.q",
        "quotes that contain escaped quotes",
    ),
    "NUL": ({"url": "/p", "query": {"q": "\0{nickname}"}}, "query.q", "NUL"),
    "backslash before": ({"url": "/p", "query": {"q": r'"\{nickname}"'}}, "query.q", "escaped"),
    "doubled within": ({"url": "/p", "query": {"q": "'a''{nickname}'"}}, "query.q", "escaped"),
    "query name": ({"url": "/p", "query": {"{nickname}": "a"}}, "query.{nickname}", "only values"),
    "header name": (
        {"url": "/p", "headers": {"X-{nickname}": "a"}},
        "headers.X-{nickname}",
        "not the name of a header",
    ),
    "header value": ({"url": "/{nickname}", "headers": {"A": "ü"}}, "headers.A", "printable"),
    "header brace": ({"url": "/{nickname}", "headers": {"A": "{"}}, "headers.A", "a lone {"),
    "header blank": ({"url": "/{nickname}", "headers": {"A": "{nickname} "}}, "headers.A", "ends"),
    **{
        f"header {name}": ({"url": "/{nickname}", "headers": {name: ""}}, f"headers.{name}", "auth")
        for name in (
            *("Accept-Encoding", "authorization", "Connection", "Content-Length", "Expect", "Host"),
            *("Keep-Alive", "Proxy-Authorization", "TE", "Trailer", "Transfer-Encoding", "Upgrade"),
        )
    },
    "twice": ({"url": "/{nickname}", "headers": {"A": "1", "a": "2"}}, "headers", "duplicate"),
    "JSON key": ({"url": "/p", "json": {"a": {"{nickname}": "b"}}}, "json.a.{nickname}", "only"),
    "JSON text": ({"url": "/p", "json": "{nickname}"}, "json", "not JSON"),
    "form name": ({"url": "/p", "form": {"{nickname}": "a"}}, "form.{nickname}", "only values"),
    "JSON twice": ({"url": "/{nickname}", "json": '{"a": 1, "a": 2}'}, "json", "not JSON"),
    "JSON deep": ({"url": "/{nickname}", "json": "[" * 9999 + "]" * 9999}, "json", "not JSON"),
    "two bodies": ({"url": "/{nickname}", "json": {}, "form": {}}, "form", "one body"),
    "method": ({"url": "/{nickname}", "method": "get"}, "method", "in capitals"),
    "TRACE": ({"url": "/{nickname}", "method": "TRACE"}, "method", "not a valid method"),
    "CONNECT": ({"url": "/{nickname}", "method": "CONNECT"}, "method", "not a valid method"),
}


@pytest.mark.parametrize(("options", "where", "said"), WRONG.values(), ids=WRONG.keys())
def test_invalid_request_is_reported_at_its_location(
    options: dict[str, Any], where: str, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        NicknameRequest.model_validate(options)
    (problem,) = caught.value.errors()
    assert ".".join(map(str, problem["loc"])) == where
    assert said in problem["msg"]


def test_every_wrong_value_is_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        CardRequest.model_validate(
            {
                "url": "/p",
                "query": {"a": "{", "b": "1", "c": "{nickname}"},
                "json": {"d": [{"e": "}"}, "{"]},
            }
        )
    assert [problem["loc"] for problem in caught.value.errors()] == [
        ("query", "a"),
        ("query", "c"),
        ("json", "d", 0, "e"),
        ("json", "d", 1),
    ]


@pytest.mark.parametrize("behind", [";x", "?", "#", "\0", "/x", "\\x", ""], ids=repr)
def test_dots_before_a_delimiter_are_a_dot_segment(behind: str) -> None:
    """Servers written in Java strip parameters of a segment, behind a semicolon."""
    for url in ("/people/{nickname}", "/people%2f{nickname}", "/p/{nickname};v=1/x"):
        with pytest.raises(Broken, match="the query cannot be part of a path") as caught:
            render(ByNickname(f"..{behind}"), url=url)
        assert not caught.value.counts_against_breaker
    assert render(ByNickname("..."), url="/p/{nickname};v=1/x").url == "/p/...;v=1/x"


@pytest.mark.parametrize("value", ["", "\ud800", "é"], ids=ascii)
def test_query_that_cannot_be_sent_leaves_the_breaker_closed(value: str) -> None:
    with pytest.raises(Broken) as caught:
        render(ByNickname(value), url="/p", headers={"X-Login": "{nickname}"})
    assert not caught.value.counts_against_breaker


def test_the_repr_of_a_request_has_no_value() -> None:
    """Its URL has the query, and its headers may have a credential."""
    request = Request("GET", "/u/alice", {"X-Key": "tweety"}, b"alice", repeatable=True)
    options = {"url": "/u/{nickname}", "headers": {"X-Key": "tweety"}}
    template = NicknameRequest.model_validate(options).template("x")
    assert not any(value in repr([request, template]) for value in ("alice", "tweety"))
