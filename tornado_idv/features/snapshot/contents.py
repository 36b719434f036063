"""The format of a snapshot of the answer cache, and the rules for restoring answers.

A restored answer is always stale. It expires ``stale_if_error`` after its lookup, and no restart
extends this time. Times are in seconds of the wall clock.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from tornado_idv.errors import IdvError
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.entries import Entry, take
from tornado_idv.model import Answer, ByCard, ByNickname, User

MARK = b"tornado-idv snapshot "
"""The first bytes of the file, equal in all versions."""
_SETS = 257
"""Number of sets in `Texts`: odd, as the hashes in one set must differ in their lowest bits."""
_BEGINNING = MARK + b"1\n"


class SnapshotIgnored(IdvError):
    """A file is not a usable snapshot. The message gives the operator the reason."""


class _Row(Struct, array_like=True, gc=False):
    text: str
    user: User
    backend: str
    until: float

    @property
    def texts(self) -> tuple[str, str]:
        return f"@{self.user.nickname}", self.user.card_number


class Snapshot(Struct):
    """The cached answers at the time ``written``, with the ``revisions`` of the backends.

    ``scope`` identifies the configuration. Answers of another scope must not be used.
    """

    scope: str
    written: float
    revisions: dict[str, str | None]
    rows: list[_Row] = []


class Texts:
    """Nicknames and card numbers in many sets, because a large set takes long to grow and free."""

    def __init__(self) -> None:
        self._sets = [set[str]() for _ in range(_SETS)]

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._sets[hash(text) % _SETS].add(text)

    def __contains__(self, text: object) -> bool:
        return text in self._sets[hash(text) % _SETS]

    def clear(self) -> None:
        """Remove all texts. Their memory is freed in steps."""
        sets, self._sets = self._sets, [set() for _ in range(_SETS)]
        take(map(set.clear, sets))


_ENCODER = msgspec.json.Encoder()


def encode(snapshot: Snapshot, cache: AnswerCache, persisted: Texts) -> Iterator[bytes]:
    """Yield the lines of a snapshot in parts. Add the identifiers of its users to ``persisted``."""
    offset, limit = snapshot.written - cache.timer(), cache.limits.stale_if_error
    yield _ENCODER.encode_lines([snapshot])

    def rows(entries: Iterable[tuple[str, Entry]]) -> Iterator[_Row]:
        for text, entry in entries:
            answer = entry.answer
            until = min(answer.since + limit, entry.stale_until) + offset
            if answer.user and answer.backend and not answer.degraded and until > snapshot.written:
                row = _Row(text, answer.user, answer.backend, until)
                persisted.add(row.texts)
                yield row

    for entries in cache.found_entries():
        yield _ENCODER.encode_lines(rows(entries))


def to_file(parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a snapshot file: version, checksum of ``parts``, and ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [_BEGINNING, digest.hexdigest().encode(), b"\n", *parts]


def decode(content: bytes, scope: str, now: float) -> Snapshot:
    """Return the snapshot in the content of a file.

    Raises `SnapshotIgnored`, for example for a damaged file, or another configuration.
    """
    if not content.startswith(_BEGINNING):
        raise SnapshotIgnored("not a snapshot of this format")
    _, _, lines = content.removeprefix(_BEGINNING).partition(b"\n")
    if content != b"".join(to_file([lines])):
        raise SnapshotIgnored("truncated or damaged")
    header, _, rows = lines.partition(b"\n")
    try:
        snapshot = msgspec.json.decode(header, type=Snapshot)
        snapshot.rows = msgspec.json.Decoder(_Row).decode_lines(rows)
    except msgspec.DecodeError:
        raise SnapshotIgnored("damaged") from None
    if snapshot.scope != scope:
        raise SnapshotIgnored("written with other settings of backends, identifiers or cache")
    if snapshot.written > now:
        raise SnapshotIgnored("written in the future; the clock was set back")
    return snapshot


def restore(
    snapshot: Snapshot,
    cache: AnswerCache,
    now: float,
    revisions: Mapping[str, str | None],
    encode_user: Callable[[User], bytes],
) -> int:
    """Add the answers of a snapshot to a cache as stale answers. Return their number.

    ``revisions`` has the current revision of each backend, in the order of lookups. A new or
    changed backend may now answer queries that later backends answered before. So only answers of
    the backends before the first new or changed backend are restored.
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
        query = ByNickname(row.text[1:]) if row.text.startswith("@") else ByCard(row.text)
        since = row.until - limit + offset
        cache.keep_stale(query, Answer(row.user, backend, since, encode_user(row.user)), seconds)
        count += 1
    return count
