"""Selection of keys to copy from another store: new ones, and those that were changed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tornado_idv.errors import KeyStoreError
from tornado_idv.keys.record import KeyRecord, in_order


@dataclass(frozen=True, slots=True)
class Changes:
    """The keys that a copy adds, and those that it changes."""

    new: list[KeyRecord]
    changed: list[KeyRecord]

    @property
    def ids(self) -> list[str]:
        """The ids of both, in order."""
        return sorted(each.id for each in (*self.new, *self.changed))


def compare(records: Sequence[KeyRecord], known: Mapping[str, KeyRecord], now: float) -> Changes:
    """Return what makes ``known``, the keys by their ids, equal to the records of another store.

    Tokens that have expired at ``now``, in Unix time, may be in ``known`` only; the first token of
    a key that was not rotated when it was copied expires at ``now``. Raises `KeyStoreError` for a
    key that was changed in ``known`` since it was copied, or is another one: no key or token
    becomes valid again, and none is removed.
    """
    new = [each for each in records if each.id not in known]
    copied = (_with_removed(each, known[each.id], now) for each in records if each.id in known)
    differing = [each for each in copied if not _is_same(each, known[each.id])]
    owners = {token.digest: each.id for each in known.values() for token in each.tokens}
    conflicts = {}
    for record in differing:
        if any(owners.get(token.digest, record.id) != record.id for token in record.tokens):
            conflicts[record.id] = "another key has its token"
        elif reason := _conflict(record, known[record.id]):
            conflicts[record.id] = reason
    if conflicts:
        key_id, reason = next(iter(conflicts.items()))
        text = f"{len(conflicts)} keys differ in the two stores, such as {key_id}: {reason}"
        raise KeyStoreError(f"{text}; nothing was copied")
    return Changes(new, differing)


def _conflict(source: KeyRecord, copy: KeyRecord) -> str | None:
    """Return why a copy cannot become equal to its source."""
    if _unchangeable(source) != _unchangeable(copy):
        return "it is another key; issue a key with another id and revoke it in both"
    if source.revoked is None and copy.revoked is not None:
        return "it is revoked here only; revoke it in the other store, too"
    if source.revoked is None and copy.disabled and not source.disabled:
        return "it is disabled here only; enable it here, or disable it in the other store, too"
    ends = source.ends
    if any(digest not in ends for digest in copy.ends):
        return (
            "it was rotated here, or twice in the other store, over 30 days apart; issue a key "
            "with another id and revoke it in both"
        )
    if any(ends[digest] > end for digest, end in copy.ends.items()):
        return (
            "a token of it expires earlier here; issue a key with another id and revoke it in both"
        )
    return None


def _with_removed(source: KeyRecord, copy: KeyRecord, now: float) -> KeyRecord:
    """Return the source with tokens that only its copy has, as a rotation removes expired ones.

    They get an expiry of their own, since that of the key may be later in the source. The only
    token of a copy, issued with the key, came from the source: a rotation here would have kept it
    and added one. Of other tokens it is not known which store they were added in.
    """
    ends = copy.ends
    digests = {token.digest for token in source.tokens}
    was_rotated = len(copy.tokens) > 1 or copy.tokens[0].created != copy.created
    removed = [
        replace(token, expires=min(ends[token.digest], now))
        for token in copy.tokens
        if token.digest not in digests and (ends[token.digest] <= now or not was_rotated)
    ]
    return replace(source, tokens=in_order([*removed, *source.tokens])) if removed else source


def _is_same(one: KeyRecord, other: KeyRecord) -> bool:
    """Return whether they are equal but for last use, or both revoked: no more matters then."""
    if one.revoked is not None and other.revoked is not None:
        return True
    return replace(one, last_used=None) == replace(other, last_used=None)


def _unchangeable(record: KeyRecord) -> KeyRecord:
    """Return the record without what commands change."""
    return replace(record, tokens=(), expires=None, disabled=False, revoked=None, last_used=None)
