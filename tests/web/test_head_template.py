"""Head templates match the heads that the parser accepts, with the same meaning, and no others."""

import sys
from unittest.mock import Mock

import pytest
from tornado.httputil import HTTPInputError, HTTPServerRequest

from support.fakes.clock_and_backends import Ticker
from tornado_idv.http.head import HttpError, RequestHead, parse_head
from tornado_idv.trace_context import parse_trace
from tornado_idv.web.fast_path import head_template
from tornado_idv.web.fast_path.head_template import (
    SIGNIFICANT,
    HeadTemplate,
    HeadTemplates,
    compile_template,
    shape_of,
)
from tornado_idv.web.handler import JsonHandler
from tornado_idv.web.response import valid_request_id

LINE = b"POST /api/v1/identify/url HTTP/1.1"
FIELDS = (
    b"Host: api.example",
    b"X-Forwarded-For: 192.0.2.7",
    b"X-Request-ID: 6f1c",
    b"X-IDV-Request-ID: 6f1d",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    b"User-Agent: python-requests/2.31.0",
    b"Accept: */*",
    b"Authorization: Bearer 0123456789abcdef",
    b"Content-Type: application/json",
    b"Content-Length: 19",
)


def head_of(*fields: bytes, line: bytes = LINE) -> bytes:
    return b"\r\n".join([line, *fields, b"", b""])


def learned(data: bytes) -> HeadTemplate[str]:
    template = compile_template(parse_head(data, 1 << 20), "meaning")
    assert template is not None
    return template


HEAD = head_of(*FIELDS)


def test_values_that_vary_match_and_are_read() -> None:
    other = HEAD.replace(b"6f1c", b"77").replace(b"192.0.2.7", b"10.0.0.1, 10.0.0.2")
    other = other.replace(b": 19", b": 7").replace(b"0123456789abcdef", b"token")
    other = other.replace(b"api.example", b"[2001:db8::1]:8080")
    template = learned(HEAD)
    match = template.match(other + b"the body")
    assert match is not None
    assert match.end() == len(other)
    groups = (template.token, template.length, template.request_id, template.forwarded_for)
    assert [match[each].strip() for each in groups] == [
        b"token",
        b"7",
        b"77",
        b"10.0.0.1, 10.0.0.2",
    ]


OTHERS = {
    "another target": HEAD.replace(b"url", b"card"),
    "another method": HEAD.replace(b"POST", b"PUT"),
    "two hosts": HEAD.replace(b"api.example", b"api.example, api2.example"),
    "no host": HEAD.replace(b"api.example", b""),
    "a long host": HEAD.replace(b"api.example", b"a" * 256),
    "another media type": HEAD.replace(b"application/json", b"text/plain"),
    "another order": head_of(*FIELDS[::-1]),
    "another spelling": HEAD.replace(b"User-Agent", b"user-agent"),
    "a field more": head_of(*FIELDS, b"X-A: 1"),
    "a field less": head_of(*FIELDS[:3], *FIELDS[4:]),
    "a field between": head_of(*FIELDS[:3], b"Content-Length: 1", *FIELDS[3:]),
    "a folded line": HEAD.replace(b"2.31.0\r\n", b"2.31.0\r\n x\r\n"),
    "a bare line feed": HEAD.replace(b"2.31.0\r\n", b"2.31.0\n"),
    "an empty length": HEAD.replace(b": 19", b": "),
    "a signed length": HEAD.replace(b": 19", b": +19"),
    "a length of two lines": HEAD.replace(b": 19", b": 1, 9"),
    "another scheme": HEAD.replace(b"Bearer", b"Digest"),
    "two tokens": HEAD.replace(b"Bearer 0", b"Bearer 0 "),
    "an incomplete head": HEAD[:-2],
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_heads_do_not_match(data: bytes) -> None:
    assert learned(HEAD).match(data) is None


BYTES = [*range(0x40), *b"AZ[az{|}~", 0x7F, 0x80, 0xA0, 0xE9, 0xFF]
"""All that mean something in a head, and letters in place of the others."""


@pytest.mark.slow
def test_what_matches_means_the_same_to_the_parser() -> None:
    """With each byte at every place of a head that was learned."""
    data = head_of(*FIELDS, b"Connection: keep-alive", b"X-Empty:", b"Cookie: \xe9")
    template, original = learned(data), parse_head(data, 1 << 20)
    matched = 0
    for place in range(len(data)):
        for byte in BYTES:
            other = data[:place] + bytes([byte]) + data[place + 1 :]
            match = template.match(other)
            if match is None:
                continue
            matched += 1
            try:
                head = parse_head(other, 1 << 20)
                HTTPServerRequest(headers=head.headers, start_line=head.start_line)
            except (HttpError, HTTPInputError):
                pytest.fail(f"byte {byte} at {place} is rejected by the parser")
            assert head.start_line == original.start_line
            assert head.keep_alive == original.keep_alive
            for name in SIGNIFICANT:
                assert head.headers.get(name) == original.headers.get(name)
            assert head.content_length == int(match[template.length])
            handler = Mock(request=head)
            JsonHandler.authenticate(handler, ring := Mock())
            ring.authenticate.assert_called_with("bearer", match[template.token].decode())
            address = match[template.forwarded_for].strip(b" \t").decode("latin-1")
            assert address == head.headers["x-forwarded-for"]
            request_id, trace_id = match[template.request_id], match[template.traceparent]
            assert request_id == encoded_id(head.headers["x-request-id"])
            echoed = match[template.echoed]
            assert echoed == encoded_id(head.headers["x-idv-request-id"])
            trace = parse_trace(head.headers["traceparent"])
            assert trace_id == (trace.id.encode() if trace else None)
    assert matched > 5000


def encoded_id(sent: str) -> bytes | None:
    return sent.encode() if valid_request_id(sent) else None


def test_head_is_learned_when_it_comes_a_second_time() -> None:
    templates = HeadTemplates[str]()
    head = parse_head(HEAD, 1 << 20)
    found = []
    for _ in range(3):
        templates.learn(head, "key", "meaning")
        found.append(templates.find(HEAD.replace(b"6f1c", b"77")) is not None)
    assert found == [False, True, True]
    assert templates.find(OTHERS["another order"]) is None


def learn_twice(templates: HeadTemplates[str], data: bytes, key_id: str) -> None:
    for _ in range(2):
        templates.learn(parse_head(data, 1 << 20), key_id, "meaning")


def test_spelling_of_one_key_takes_the_template_of_no_other() -> None:
    templates = HeadTemplates[str]()
    learn_twice(templates, HEAD.replace(b"Content-Length: ", b"Content-Length: 0"), "odd")
    assert templates.find(HEAD) is None
    learn_twice(templates, HEAD, "key")
    assert templates.find(HEAD) is not None


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[RequestHead]:
    """The heads of which templates were compiled."""
    heads: list[RequestHead] = []

    def compile_counted(head: RequestHead, meaning: str) -> HeadTemplate[str] | None:
        heads.append(head)
        return compile_template(head, meaning)

    monkeypatch.setattr(head_template, "compile_template", compile_counted)
    return heads


def test_client_with_ever_new_heads_takes_no_template_that_is_used(
    compiled: list[RequestHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And few are compiled for it, since each takes long."""
    monkeypatch.setattr(head_template, "_MAX_TEMPLATES", 100)
    ticker = Ticker()
    templates = HeadTemplates[str](ticker)
    learn_twice(templates, HEAD, "good")
    for number in range(210):
        ticker.now += 1 / 16
        learn_twice(templates, head_of(*FIELDS, b"X-%d: 1" % number), "bad")
        assert templates.find(HEAD) is not None
    assert sum(bool(templates.find(head_of(*FIELDS, b"X-%d: 1" % n))) for n in range(210)) == 99
    assert len(compiled) == pytest.approx(1 + 32 + 210 / 16 * 8, abs=2)
    learn_twice(templates, OTHERS["another order"], "good")
    assert templates.find(OTHERS["another order"]) is not None


def test_sixty_kinds_of_clients_of_one_key_are_learned_in_seconds() -> None:
    ticker = Ticker()
    templates = HeadTemplates[str](ticker)
    for change in range(3):
        data = [head_of(*FIELDS, b"X-%d-%d: 1" % (change, number)) for number in range(60)]
        heads = [parse_head(each, 1 << 20) for each in data]
        for _ in range(80):
            ticker.now += 0.1
            for head in heads:
                templates.learn(head, "shared", "meaning")
        assert None not in map(templates.find, data)


def test_heads_that_never_come_again_keep_no_other_from_being_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_template, "_MAX_SEEN", 100)
    templates = HeadTemplates[str]()
    for number in range(160):
        templates.learn(parse_head(head_of(*FIELDS, b"X-%d: 1" % number), 1 << 20), "bad", "")
        if number in (100, 159):
            templates.learn(parse_head(HEAD, 1 << 20), "good", "meaning")
    assert templates.find(HEAD) is not None
    forgotten = head_of(*FIELDS, b"X-0: 1")
    templates.learn(parse_head(forgotten, 1 << 20), "bad", "meaning")
    assert templates.find(forgotten) is None


def test_head_that_can_have_no_template_leaves_those_of_its_key_their_share() -> None:
    templates = HeadTemplates[str](Ticker())
    data = head_of(*FIELDS, b"Expect: 100-continue")
    for _ in range(50):
        learn_twice(templates, data, "key")
    learn_twice(templates, OTHERS["another order"], "key")
    found = [templates.find(each) for each in (data, OTHERS["another order"])]
    assert [each is not None for each in found] == [False, True]


def test_form_has_at_most_forty_fields() -> None:
    templates = HeadTemplates[str]()
    more = [b"a%d: 1" % number for number in range(41 - len(FIELDS))]
    for data in (head_of(*FIELDS, *more), head_of(*FIELDS, *more[1:])):
        learn_twice(templates, data, "key")
        assert (templates.find(data) is not None) is (data.count(b"\r\n") == 42)


@pytest.mark.parametrize("name", SIGNIFICANT)
def test_value_of_a_significant_field_makes_another_form_and_no_other_value_does(name: str) -> None:
    def shape(inert: bytes, significant: bytes) -> int | None:
        lines = [b"X-%b: %b", b"%b: %b" % (name.title().encode(), significant), b"A: %b" % inert]
        return shape_of(head_of(lines[0] % (name.encode(), inert), *lines[1:]))

    assert shape(b"1", b"1") == shape(b"22:2", b"1") != shape(b"1", b"2")


def test_incomplete_head_has_no_form() -> None:
    assert [shape_of(HEAD[:-1]), shape_of(LINE)] == [None, None]


@pytest.mark.parametrize("name", [b"Authorization", b"Content-Length"])
def test_head_without_a_key_or_a_length_has_no_template(name: bytes) -> None:
    data = HEAD.replace(name, b"X-Other")
    assert compile_template(parse_head(data, 1 << 20), "meaning") is None


def test_size_of_a_template_is_bounded() -> None:
    more = [b"X-Field-%d: 1" % number for number in range(30)]
    for fields, most in (([], 4096), (more[:14], 7 * 1024)):
        template = learned(head_of(*FIELDS, *fields))
        parts = template, template.pattern, template.pattern.pattern, template.start
        assert sum(map(sys.getsizeof, parts)) <= most
    assert compile_template(parse_head(head_of(*FIELDS, *more), 1 << 20), "meaning") is None
