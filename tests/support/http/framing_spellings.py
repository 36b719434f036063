"""Every spelling of a framing header: what a strict reader makes of it (RFC 9112)."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
AFTER = b"POST /after HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
BODY = b"0\r\n\r\n" + SMUGGLED
"""By its length all of it is one body; in chunks the body is empty, and a request follows it."""
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLACES = {
    "before the name": (b"", b"Transfer-Encoding: chunked"),
    "in the name": (b"Transfer", b"Encoding: chunked"),
    "before the colon": (b"Transfer-Encoding", b": chunked"),
    "behind the colon": (b"Transfer-Encoding:", b"chunked"),
    "in the value": (b"Transfer-Encoding: chun", b"ked"),
    "behind the value": (b"Transfer-Encoding: chunked", b""),
}
ENDS = (b"\r\n", b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n\n", b"\0\r\n")
BYTES = (b"", *(bytes([value]) for value in range(256)))
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LINE = re.compile(rb"([^\r\n]*)\r\n")


@dataclass(frozen=True)
class Spelling:
    """A request whose header lines are these, and what is right to do with it."""

    lines: bytes

    @property
    def odd(self) -> bytes:
        """The request alone."""
        return b"POST /first HTTP/1.1\r\nHost: x\r\n" + self.lines + b"\r\n" + BODY

    @property
    def data(self) -> bytes:
        """The request and one more."""
        return self.odd + AFTER

    @property
    def expected(self) -> tuple[list[int], list[str], bool]:
        """Statuses, paths that are asked, and whether the connection is closed."""
        kind = framing(self.lines)
        if kind == "refused":
            return [400], [], True
        if kind == "chunks":
            return [200] * 3, ["/first", "/smuggled", "/after"], False
        if kind == "length":
            return [200] * 2, ["/first", "/after"], False
        return [200], ["/first"], True


def framing(lines: bytes) -> str:
    """How a request with these header lines ends, by RFC 9112 alone, read strictly."""
    names: Counter[bytes] = Counter()
    at = 0
    while at < len(lines):
        line = _LINE.match(lines, at)
        name = _name(line[1]) if line else None
        if line is None or name is None:
            return "refused"
        names[name] += 1
        at = line.end()
    chunks, length = names[b"transfer-encoding"], names[b"content-length"]
    if chunks and length:
        return "refused"
    return "chunks" if chunks else "length" if length else "none"


def _name(line: bytes) -> bytes | None:
    """What a header line names; None if it is not to be accepted."""
    name, colon, value = line.partition(b":")
    name = name.lower()
    well_formed = colon and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)
    if not well_formed or name == b"transfer_encoding":
        return None
    # llhttp is stricter than it need be with a tab behind the value.
    if name == b"transfer-encoding" and value.lstrip(b" \t").rstrip(b" ").lower() != b"chunked":
        return None
    return name


def spellings() -> Iterator[Spelling]:
    """Every byte at every place with every end of line, alone and beside a length."""
    for before, after in PLACES.values():
        for byte in BYTES:
            for end in ENDS:
                line = before + byte + after + end
                yield from map(Spelling, (line, LENGTH + line, line + LENGTH))


def sample() -> Iterator[Spelling]:
    """Every line that is valid, and each of the others alone, behind a length, or before it.

    Which of the three alternates from line to line.
    """
    for number, spelling in enumerate(spellings()):
        line, beside = divmod(number, 3)
        if line % 3 == beside or framing(spelling.lines) != "refused":
            yield spelling
