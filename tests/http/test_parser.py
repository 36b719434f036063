"""The request parser: heads and bodies out of bytes in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.http.errors import HttpError
from tornado_idv.http.head import RequestHead
from tornado_idv.http.parser import MAX_HEAD, RequestParser

FIRST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
LAST = b"GET /c HTTP/1.1\r\nHost: x\r\n\r\n"


def requests(parser: RequestParser, *pieces: bytes) -> list[tuple[str, bytes]]:
    """Path and body of each request that is complete after these pieces."""
    complete = []
    for piece in pieces:
        repeated = parser.take_repeated(piece) if parser.is_empty else None
        if repeated is not None:
            head, body = repeated
            complete.append((head.start_line.path, body))
            continue
        parser.feed(piece)
        while (head := parser.read_head()) is not None:
            body = parser.read_body()
            if body is None:
                break
            complete.append((head.start_line.path, body))
    return complete


@given(st.lists(st.integers(0, 200), max_size=6), st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]))
def test_any_segmentation_gives_the_same_requests(cuts: list[int], between: bytes) -> None:
    stream = between.join([FIRST, FIRST, CHUNKED, LAST, FIRST])
    at = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    parser = RequestParser(1024)
    pieces = [stream[start:end] for start, end in pairwise(at)]
    expected = [("/a", b"hello"), ("/a", b"hello"), ("/b", b"hi"), ("/c", b""), ("/a", b"hello")]
    assert requests(parser, *pieces) == expected
    assert parser.is_empty


def test_no_body_can_be_read_before_a_head() -> None:
    parser = RequestParser(1024)
    assert parser.read_body() is None
    parser.feed(FIRST[:-1])
    assert parser.has_head
    assert parser.read_head() is not None
    assert parser.read_body() is None
    assert not parser.is_empty


@pytest.mark.parametrize(("size", "accepted"), [(MAX_HEAD, True), (MAX_HEAD + 1, False)])
def test_head_of_16_kib_is_accepted(size: int, accepted: bool) -> None:  # noqa: FBT001
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: \r\n\r\n"
    head = head.replace(b"X-A: ", b"X-A: " + b"a" * (size - len(head)))
    parser = RequestParser(1024)
    parser.feed(head)
    if accepted:
        assert parser.read_head() is not None
    else:
        with pytest.raises(HttpError) as error:
            parser.read_head()
        assert error.value.status == 431


def repeated_head(data: bytes) -> tuple[RequestHead | None, RequestHead | None]:
    """The heads of two equal requests of one connection."""
    parser = RequestParser(1024)
    heads = []
    for _ in range(2):
        parser.feed(data)
        heads.append(parser.read_head())
        parser.read_body()
    return heads[0], heads[1]


def test_a_repeated_head_is_parsed_once() -> None:
    first, second = repeated_head(FIRST)
    assert first is second


@pytest.mark.parametrize("data", [FIRST, LAST], ids=["body", "no body"])
def test_repeated_request_is_taken_at_once(data: bytes) -> None:
    parser = RequestParser(1024)
    assert parser.take_repeated(data) is None
    assert requests(parser, data)
    assert parser.take_repeated(data) == (repeated_head(data)[0], data.partition(b"\r\n\r\n")[2])
    assert parser.is_empty


@pytest.mark.parametrize(
    "other",
    [FIRST[:-1], FIRST + b"\r\n", FIRST + LAST, FIRST.replace(b"/a", b"/b"), b"\r\n" + FIRST],
    ids=["incomplete", "an empty line after it", "two", "another head", "an empty line before it"],
)
def test_anything_else_than_a_repeated_request_is_not_taken(other: bytes) -> None:
    parser = RequestParser(1024)
    assert requests(parser, FIRST)
    assert parser.take_repeated(other) is None


@pytest.mark.parametrize(
    "data",
    [CHUNKED, FIRST.replace(b"Host: x\r\n", b"Host: x\r\nExpect: 100-continue\r\n")],
    ids=["chunked", "100-continue"],
)
def test_request_that_needs_more_than_its_bytes_is_not_taken(data: bytes) -> None:
    parser = RequestParser(1024)
    assert requests(parser, data)
    assert parser.take_repeated(data) is None


def test_repeated_request_is_not_taken_under_another_limit() -> None:
    parser = RequestParser(1024)
    assert requests(parser, FIRST)
    parser.limit_body(4)
    assert parser.take_repeated(FIRST) is None


def test_large_head_is_not_cached() -> None:
    """Thousands of connections may each keep one."""
    fields = b"".join(b"X-%d: a\r\n" % number for number in range(21))
    many = FIRST.replace(b"Host: x\r\n", b"Host: x\r\n" + fields)
    long = FIRST.replace(b"Host: x", b"Host: x\r\nX: " + b"a" * 1024)
    for data in (many, long):
        first, second = repeated_head(data)
        assert first is not second


def test_empty_line_is_ignored() -> None:
    parser = RequestParser(1024)
    for piece in (b"\r\n", b"\r", b"\n"):
        parser.feed(piece)
        assert not parser.has_started
        assert not parser.has_head
    assert parser.is_empty


@pytest.mark.parametrize("pieces", [1, 2, 20])
@pytest.mark.parametrize(("line_end", "status"), [(b"\n", 400), (b"\r\n", 431)])
def test_long_head_gets_the_same_status_in_any_segmentation(
    line_end: bytes, status: int, pieces: int
) -> None:
    data = b"GET / HTTP/1.1" + line_end + b"X: " + b"a" * MAX_HEAD
    size = -(-len(data) // pieces)
    parser = RequestParser(1024)
    with pytest.raises(HttpError) as error:
        requests(parser, *(data[at : at + size] for at in range(0, len(data), size)))
    assert error.value.status == status
