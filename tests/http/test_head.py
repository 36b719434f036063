"""The head of a request: what is read of it, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.http.head import HttpError, RequestHead, parse_head

MAX_BODY = 100
PIECES = (
    b"GET", b"POST", b"CONNECT", b"BREW", b" ", b"/", b"*", b"http://x", b"HTTP/1.1", b"HTTP/1.0",
    b"\r\n", b"\n", b"\r", b"\t", b"\0", b":", b": ", b",", b";", b"Host: x", b"Host",
    b"Content-Length: 5", b"content-length", b"Transfer-Encoding: chunked", b"transfer_encoding",
    b"Expect: 100-continue", b"Connection: close", b"Upgrade: h2c", b"keep-alive", b"\xff", b"%zz",
    b"99999999999999999999", b"-1", b"0x5",
)  # fmt: skip


def read(*fields: str, line: str = "POST / HTTP/1.1") -> RequestHead:
    lines = [line, *fields, "", ""]
    return parse_head("\r\n".join(lines).encode("latin-1"), MAX_BODY)


def test_head_has_method_target_and_headers() -> None:
    head = read("Host: x", "Content-Length: 7", "X-Name: \xe9", line="POST /a?b HTTP/1.1")
    assert tuple(head.start_line) == ("POST", "/a?b", "HTTP/1.1")
    assert list(head.headers.get_all()) == [
        ("Host", "x"),
        ("Content-Length", "7"),
        ("X-Name", "\xe9"),
    ]
    assert (head.content_length, head.keep_alive, head.expects_continue) == (7, True, False)


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://x/a?b", "/a?b"), ("HTTPS://x:1", "/"), ("/http://x/", "/http://x/"), ("*", "*")],
)
def test_absolute_target_is_reduced_to_its_path(target: str, path: str) -> None:
    assert read("Host: x", line=f"GET {target} HTTP/1.1").start_line.path == path


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ((), 0),
        (("Content-Length: 0",), 0),
        (("Content-Length: 00100",), 100),
        (("Transfer-Encoding: CHUNKED",), None),
    ],
    ids=["none reported", "zero", "zeros in front", "chunks"],
)
def test_a_body_has_a_length_or_chunks(fields: tuple[str, ...], length: int | None) -> None:
    assert read("Host: x", *fields).content_length == length


@pytest.mark.parametrize(
    ("version", "fields", "stays"),
    [
        ("1.1", (), True),
        ("1.1", ("Connection: close",), False),
        ("1.1", ("Connection: a, CLOSE",), False),
        ("1.1", ("Connection: a", "Connection: close"), False),
        ("1.1", ("Connection: closed", *["X: y"] * 97), True),
        ("1.0", (), False),
        ("1.0", ("Connection: Keep-Alive",), True),
        ("1.0", ("Connection: keep-alive, close",), False),
    ],
)
@pytest.mark.parametrize("length", [0, 5], ids=["no body", "a body"])
def test_keep_alive_follows_the_request(
    version: str,
    fields: tuple[str, ...],
    stays: bool,  # noqa: FBT001
    length: int,
) -> None:
    """The result is the same with and without a body, unlike that of llhttp alone."""
    head = read("Host: x", f"Content-Length: {length}", *fields, line=f"POST / HTTP/{version}")
    assert head.keep_alive is stays


@pytest.mark.parametrize(
    ("method", "stays"),
    [("GET", True), ("DELETE", True), ("POST", False), ("PUT", False), ("PATCH", False)],
)
def test_keep_alive_without_a_declared_body_depends_on_the_method(
    method: str,
    stays: bool,  # noqa: FBT001
) -> None:
    assert read("Host: x", line=f"{method} / HTTP/1.1").keep_alive is stays


def test_unknown_method_is_left_to_the_route() -> None:
    head = read("Content-Length: 5", line="BREW http://x/tea HTTP/1.1")
    assert tuple(head.start_line) == ("BREW", "/tea", "HTTP/1.1")
    assert (head.headers["Host"], head.content_length, head.keep_alive) == ("unknown", 0, False)


def test_fields_of_a_proxy_are_read_with_an_unknown_method() -> None:
    fields = ("X-Forwarded-For: ::1", "Connection: upgrade", "Upgrade: x", "X-Forwarded-For: ::2")
    head = read("Host: x", *fields, line="BREW /tea HTTP/1.1")
    assert head.headers.get("X-Forwarded-For") == "::1,::2"


@pytest.mark.parametrize(
    ("fields", "line", "expects"),
    [
        (("Content-Length: 5", "Expect: 100-Continue"), "POST / HTTP/1.1", True),
        (("Transfer-Encoding: chunked", "Expect: 100-continue"), "POST / HTTP/1.1", True),
        (("Content-Length: 0", "Expect: 100-continue"), "POST / HTTP/1.1", False),
        (("Content-Length: 5", "Expect: 100-continue"), "POST / HTTP/1.0", False),
        (("Content-Length: 5",), "POST / HTTP/1.1", False),
    ],
    ids=["a length", "chunks", "nothing to send", "HTTP/1.0", "not asked"],
)
def test_100_continue_is_sent_only_where_it_is_expected_and_allowed(
    fields: tuple[str, ...],
    line: str,
    expects: bool,  # noqa: FBT001
) -> None:
    assert read("Host: x", *fields, line=line).expects_continue is expects


INVALID = {
    "a target beyond ASCII": (("Host: x",), "POST /\xe9 HTTP/1.1", 400),
    "no colon": (("Host: x", "X"), "POST / HTTP/1.1", 400),
    "an unknown method": (("Host: x", "X: \x01"), "BREW / HTTP/1.1", 400),
    "a host without end": (("Host: " + "x" * 262,), "POST / HTTP/1.1", 400),
    "two hosts in HTTP/1.0": (("Host: x", "Host: y"), "POST / HTTP/1.0", 400),
    "an invalid host in HTTP/1.0": (("Host: a/b",), "POST / HTTP/1.0", 400),
    "an underscore": (("Host: x", "content_encoding: y"), "POST / HTTP/1.1", 400),
    "nothing expected": (("Host: x", "Expect: "), "POST / HTTP/1.1", 417),
    "101 fields": (("Host: x", *["X: y"] * 100), "POST / HTTP/1.1", 431),
}


@pytest.mark.parametrize(("fields", "line", "status"), INVALID.values(), ids=INVALID)
def test_invalid_head_is_rejected(fields: tuple[str, ...], line: str, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        read(*fields, line=line)
    assert caught.value.status == status


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4)).map(b"".join))
def test_no_bytes_are_too_much(data: bytes) -> None:
    for head in (data, b"POST / HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n"):
        try:
            length = parse_head(head, MAX_BODY).content_length
        except HttpError:
            continue
        assert length is None or 0 <= length <= MAX_BODY


def test_the_repr_of_a_head_has_no_target() -> None:
    """Clients may put a nickname into a wrong path, and an exception group shows locals."""
    head = parse_head(b"GET /@alice HTTP/1.1\r\nHost: h\r\n\r\n", 1)
    assert "alice" not in repr(head)
