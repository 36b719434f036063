"""A snapshot of the answer cache: found answers as bytes, and the rules by which they are read.

An answer that is read is only ever served stale, until ``stale_if_error`` after it was stored
in the process that looked it up, however many restarts there were since. Times are in seconds of
the wall clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec
from msgspec import Struct

from tornado_idv.errors import IdvError
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.entries import Entry
from tornado_idv.model import Answer, ByCard, ByNickname, User

MARK = b"tornado-idv snapshot "
"""How the file of any version begins."""
_BEGINNING = MARK + b"1\n"
_BATCH = 500
"""Rows that are encoded at a time: 1 ms."""


class SnapshotIgnored(IdvError):
    """Why a snapshot is not used, as a phrase for the operator."""


class _Row(Struct, array_like=True, gc=False):
    text: str
    user: User
    backend: str
    until: float

    @property
    def texts(self) -> tuple[str, ...]:
        return self.text, f"@{self.user.nickname}", self.user.card_number


class Snapshot(Struct):
    """Answers that were cached at a time; ``revisions`` are those of the backends then.

    ``scope`` differs between configurations whose answers must not be mixed up.
    """

    scope: str
    written: float
    revisions: dict[str, str | None]
    rows: list[_Row] = []


_ENCODER = msgspec.json.Encoder()
_ROWS = msgspec.json.Decoder(_Row)
_HEADER = msgspec.json.Decoder(Snapshot)


def encode(snapshot: Snapshot, cache: AnswerCache, persisted: set[str]) -> Iterator[bytes]:
    """Yield the lines of a snapshot with what is in a cache; each part takes about 1 ms."""
    offset, limit = snapshot.written - cache.timer(), cache.limits.stale_if_error
    yield _ENCODER.encode_lines([snapshot])

    def rows(batch: Iterable[tuple[str, Entry]]) -> Iterator[_Row]:
        for text, entry in batch:
            answer = entry.answer
            until = min(answer.since + limit, entry.stale_until) + offset
            if answer.user and answer.backend and not answer.degraded and until > snapshot.written:
                row = _Row(text, answer.user, answer.backend, until)
                persisted.update(row.texts)
                cache.persisted.update(row.texts)
                yield row

    entries = cache.found_entries()
    while batch := list(islice(entries, _BATCH)):
        yield _ENCODER.encode_lines(rows(batch))


def to_file(parts: Iterable[bytes]) -> bytes:
    """Return the content of the file."""
    lines = b"".join(parts)
    return b"".join([_BEGINNING, hashlib.sha256(lines).hexdigest().encode(), b"\n", lines])


def decode(content: bytes, scope: str, now: float) -> Snapshot:
    """Return the snapshot in a file; raises `SnapshotIgnored` unless it is whole and ours."""
    if not content.startswith(_BEGINNING):
        raise SnapshotIgnored("not a snapshot of this format")
    _, _, lines = content.removeprefix(_BEGINNING).partition(b"\n")
    if content != to_file([lines]):
        raise SnapshotIgnored("cut or damaged")
    header, _, rows = lines.partition(b"\n")
    try:
        snapshot = _HEADER.decode(header)
        snapshot.rows = _ROWS.decode_lines(rows)
    except msgspec.DecodeError:
        raise SnapshotIgnored("damaged") from None
    if snapshot.scope != scope:
        raise SnapshotIgnored("of another configuration of backends, identifiers or cache")
    if snapshot.written > now:
        raise SnapshotIgnored("of a time to come; the clock was set back")
    return snapshot


def restore(
    snapshot: Snapshot,
    cache: AnswerCache,
    now: float,
    revisions: Mapping[str, str | None],
    encode_user: Callable[[User], bytes],
) -> int:
    """Keep the answers of a snapshot in a cache, to be served stale; return their number.

    ``revisions`` are those of the backends now, in order: one that has changed, or has none here,
    may also pre-empt every later one.
    """
    unchanged: dict[str, str] = {}
    for name, revision in revisions.items():
        if name not in snapshot.revisions or revision not in (None, snapshot.revisions[name]):
            break
        unchanged[name] = name  # one object for all answers
    offset, limit, count = cache.timer() - now, cache.limits.stale_if_error, 0
    for row in snapshot.rows:
        backend, seconds = unchanged.get(row.backend), row.until - now
        if backend is None or seconds <= 0:
            continue
        is_name = row.text.startswith("@")
        query = ByNickname(row.text[1:]) if is_name else ByCard(row.text)
        since = row.until - limit + offset
        cache.keep_stale(query, Answer(row.user, backend, since, encode_user(row.user)), seconds)
        count += 1
    return count
