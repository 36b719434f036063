"""The request parser: heads and bodies out of bytes in any pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.http.head import HttpError
from tornado_idv.http.parser import MAX_HEAD, RequestParser

FIRST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
LAST = b"GET /c HTTP/1.1\r\nHost: x\r\n\r\n"


def requests(parser: RequestParser, *pieces: bytes) -> list[tuple[str, bytes]]:
    """Path and body of each request that is complete after these pieces."""
    complete = []
    for piece in pieces:
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


def test_request_is_skipped_within_what_is_buffered() -> None:
    """As one that is served without being parsed."""
    parser = RequestParser(1024)
    parser.feed(FIRST + CHUNKED + LAST)
    parser.skip(len(FIRST))
    assert parser.has_head
    assert requests(parser, b"") == [("/b", b"hi"), ("/c", b"")]


def test_head_of_the_maximum_size_is_complete() -> None:
    data = LAST.replace(b"\r\n\r\n", b"\r\nX: ")
    data += b"a" * (MAX_HEAD - len(data) - 4)
    assert requests(RequestParser(1024), data + b"\r\n\r\n") == [("/c", b"")]
    with pytest.raises(HttpError) as error:
        requests(RequestParser(1024), data + b"a\r\n\r\n")
    assert error.value.status == 431


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
