"""The request parser: heads, bodies and chunks out of bytes in any pieces."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.http.head import HttpError
from tornado_idv.http.parser import MAX_HEAD, ChunkedBody, RequestParser

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
    parser.feed(b"\r")
    assert not parser.has_started  # it may be an empty line


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


MAX_BODY = 64
NEXT = b"GET / HTTP/1.1\r\n"
PRINTABLE = st.text(
    st.characters(min_codepoint=32, max_codepoint=126) | st.just("\t"), max_size=20
).map(str.encode)
TRAILERS = st.lists(
    st.tuples(st.sampled_from([b"X-Sum", b"Content-Length", b"transfer-encoding"]), PRINTABLE),
    max_size=3,
)
CHUNKS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=8), st.none() | PRINTABLE, st.integers(0, 4)),
    max_size=8,
)


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(at)]


def take(pieces: Iterable[bytes], max_body: int = MAX_BODY) -> tuple[bytes | None, bytes]:
    """The body, if it has ended, and what is left over; pieces come one by one."""
    body, buffer, ended = ChunkedBody(max_body), bytearray(), False
    for piece in pieces:
        buffer += piece
        ended = ended or body.take(buffer)
    return bytes(body.content) if ended else None, bytes(buffer)


@given(CHUNKS, TRAILERS, st.none() | PRINTABLE, st.lists(st.integers(0, 1000), max_size=6))
def test_body_split_anywhere_is_complete(
    chunks: list[tuple[bytes, bytes | None, int]],
    trailers: list[tuple[bytes, bytes]],
    last: bytes | None,
    cuts: list[int],
) -> None:
    """Whatever the extensions and trailers say; what follows is left for the next request."""
    data = b"".join(
        b"%0*x%s\r\n%s\r\n" % (zeros, len(chunk), b"" if more is None else b";" + more, chunk)
        for chunk, more, zeros in chunks
    )
    data += b"00%s\r\n" % (b"" if last is None else b";" + last)
    data += b"".join(b"%s:%s\r\n" % trailer for trailer in trailers) + b"\r\n"
    whole = b"".join(chunk for chunk, _, _ in chunks)
    assert take(pieces_of(data + NEXT, cuts)) == (whole, NEXT)
    assert take(bytes([byte]) for byte in data) == (whole, b"")


@given(
    st.lists(
        st.sampled_from([b"0", b"5", b"\r\n", b"\r", b"\n", b"hello", b";", b":", b"F" * 9, b"a"])
        | st.binary(max_size=3)
    ).map(b"".join),
    st.lists(st.integers(0, 1000), max_size=4),
)
def test_no_bytes_are_too_much(data: bytes, cuts: list[int]) -> None:
    """They are taken or refused, alike however they are cut, and bounded."""

    def outcome(pieces: Iterable[bytes]) -> object:
        try:
            return take(pieces)[0]
        except HttpError:
            return HttpError

    whole = outcome([data])
    assert whole is HttpError or whole is None or len(whole) <= MAX_BODY  # type: ignore[arg-type]
    assert outcome(pieces_of(data, cuts)) == whole


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\r\n", 400),
        (b"g\r\n", 400),
        (b"+5\r\n", 400),
        (b"0x5\r\n", 400),
        (b"5 \r\n", 400),
        (b"5;\0\r\n", 400),
        (b"000000005\r\n", 400),
        (b"5\nhello", 400),
        (b"5\rhello", 400),
        (b"5\r\nhello!\n", 400),
        (b"5\r\nhello\r!", 400),
        (b"5;" + b"x" * 300, 400),
        (b"0\r\nno colon\r\n", 400),
        (b"0\r\n folded: x\r\n", 400),
        (b"0\r\nX-A: \0\r\n", 400),
        (b"0\r\n" + b"X-A: y\r\n" * 171, 400),
        (b"0\r\nX-A: y\n\r\n", 400),
        (b"41\r\n", 413),
        (b"40\r\n" + b"x" * 64 + b"\r\n1\r\n", 413),
        (b"FFFFFFFF\r\n", 413),
    ],
)
def test_invalid_chunk_is_rejected(data: bytes, code: int) -> None:
    with pytest.raises(HttpError) as caught:
        take([data])
    assert caught.value.status == code


def test_a_large_body_may_come_in_chunks_of_one_byte() -> None:
    body = b"x" * 16 * 1024
    data = b"1\r\nx\r\n" * len(body) + b"0\r\n\r\n"
    assert take([data], max_body=len(body)) == (body, b"")


@pytest.mark.parametrize("extension", [b"", b";" + b"x" * 200], ids=["sizes", "extensions"])
def test_chunk_framing_counts_towards_a_limit(extension: bytes) -> None:
    """It is reached after 16 KiB of sizes and extensions, whatever the size of the body."""
    line = b"00000001" + extension
    fit = 16 * 1024 // len(line)
    chunks = (line + b"\r\nx\r\n") * fit
    assert take([chunks + b"0\r\n\r\n"], max_body=1 << 20) == (b"x" * fit, b"")
    with pytest.raises(HttpError) as caught:
        take([chunks, line + b"\r\nx\r\n"], max_body=1 << 20)
    assert caught.value.status == 413
