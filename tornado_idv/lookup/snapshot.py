"""A snapshot of the answer cache: found answers as bytes, and the rules by which they are read.

An answer that is read is only ever served stale, until ``stale_if_error`` after it was stored
in the process that looked it up, however many restarts there were since. Times are in seconds of
the wall clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_DIGEST_SIZE = hashlib.sha256().digest_size
_LENGTH_SIZE = 4
_BATCH = 500
"""Rows that are encoded at a time: 1 ms."""


class SnapshotIgnored(IdvError):
    """Why a snapshot is not used, as a phrase for the operator."""


class _Row(Struct, array_like=True, gc=False):
    text: str
    plan: str
    card_number: str
    nickname: str
    profile_url: str | None
    backend: str
    stored: float
    until: float


class Snapshot(Struct):
    """Answers that were cached at a time; ``revisions`` are those of the backends then.

    ``scope`` differs between configurations whose answers must not be mixed up.
    """

    scope: str
    written: float
    revisions: dict[str, str | None]
    rows: list[_Row] = []


_ROWS = msgspec.msgpack.Decoder(list[_Row])
_HEADER = msgspec.msgpack.Decoder(Snapshot)


def encode(snapshot: Snapshot, cache: AnswerCache) -> Iterator[bytes]:
    """Yield the parts of a snapshot with what is in a cache; each takes about 1 ms."""
    offset = snapshot.written - cache.timer()
    yield msgspec.msgpack.encode(snapshot)

    def row(text: str, entry: Entry) -> _Row | None:
        answer = entry.answer
        user, until = answer.user, entry.stale_until + offset
        if user is None or answer.degraded or answer.backend is None or until <= snapshot.written:
            return None
        stored = answer.since + offset
        fields = user.plan, user.card_number, user.nickname, user.profile_url
        return _Row(text, *fields, answer.backend, stored, until)

    entries = cache.found_entries()
    while batch := list(islice(entries, _BATCH)):
        rows = [row(text, entry) for text, entry in batch]
        yield msgspec.msgpack.encode([each for each in rows if each is not None])


def to_file(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the content of the file."""
    framed = [len(each).to_bytes(_LENGTH_SIZE) + each for each in parts]
    digest = hashlib.sha256()
    for each in framed:
        digest.update(each)
    yield _BEGINNING + digest.digest()
    yield from framed


def decode(content: bytes, scope: str, now: float) -> Snapshot:
    """Return the snapshot in a file; raises `SnapshotIgnored` unless it is whole and ours."""
    if not content.startswith(_BEGINNING):
        is_ours = content.startswith(MARK)
        raise SnapshotIgnored("of another version" if is_ours else "not a snapshot")
    start = len(_BEGINNING) + _DIGEST_SIZE
    digest = hashlib.sha256(memoryview(content)[start:]).digest()
    if content[len(_BEGINNING) : start] != digest:
        raise SnapshotIgnored("cut or damaged")
    try:
        header, *parts = _split(memoryview(content)[start:])
        snapshot = _HEADER.decode(header)
        if snapshot.scope != scope:
            raise SnapshotIgnored("of another configuration of backends, identifiers or cache")
        if snapshot.written > now:
            raise SnapshotIgnored("of a time to come; the clock was set back")
        snapshot.rows = [row for part in parts for row in _ROWS.decode(part)]
    except (ValueError, msgspec.DecodeError):
        raise SnapshotIgnored("damaged") from None
    return snapshot


def _split(content: memoryview) -> Iterable[memoryview]:
    while content:
        end = _LENGTH_SIZE + int.from_bytes(content[:_LENGTH_SIZE])
        yield content[_LENGTH_SIZE:end]
        content = content[end:]


def restore(
    snapshot: Snapshot,
    cache: AnswerCache,
    now: float,
    revisions: Mapping[str, str | None],
    *,
    encode_user: Callable[[User], bytes],
    accepts: Callable[[User], bool],
) -> int:
    """Keep the answers of a snapshot in a cache, to be served stale; return their number.

    ``revisions`` are those of the backends now, in order: one that has changed may also pre-empt
    every later one.
    """
    unchanged: dict[str, str] = {}
    for name, revision in revisions.items():
        if name not in snapshot.revisions or revision not in (None, snapshot.revisions[name]):
            break
        unchanged[name] = name  # one object for all answers
    offset, limit, count = cache.timer() - now, cache.limits.stale_if_error, 0
    for row in snapshot.rows:
        user = User(row.plan, row.card_number, row.nickname, row.profile_url)
        backend = unchanged.get(row.backend)
        seconds = min(row.stored + limit, row.until) - now
        is_answer = row.text in (f"@{user.nickname}", user.card_number) and accepts(user)
        if backend is None or seconds <= 0 or row.stored > now or not is_answer:
            continue
        is_name = row.text.startswith("@")
        query = ByNickname(row.text[1:]) if is_name else ByCard(row.text)
        answer = Answer(user, backend, row.stored + offset, encode_user(user))
        cache.keep_stale(query, answer, seconds)
        count += 1
    return count
