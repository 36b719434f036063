"""The key store: reads all keys, and makes the changes of the commands."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from tornado_idv.errors import KeyStoreError
from tornado_idv.keys.api_key import KEY_ID, Scope
from tornado_idv.keys.record import KeyRecord, Token
from tornado_idv.keys.store_file import BUSY_TIMEOUT, DAMAGED, connected, transaction
from tornado_idv.units import format_rate, parse_rate

_COLUMNS = (
    "id, created, owner, scopes, not_before, expires, requests, misses, note, disabled, revoked"
)
_KEYS = f"SELECT {_COLUMNS}, time FROM keys LEFT JOIN last_used USING (id)"  # noqa: S608 - constant
_PUT_KEY = "REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TOKENS = "SELECT id, digest, created, expires FROM tokens"
_SCOPES = frozenset(get_args(Scope))
_DIGEST_SIZE = 32
_EXPIRED_KEPT = 30 * 86400.0
"""Seconds for which a token stays in the store after it has expired."""


class DuplicateKeyError(KeyStoreError):
    """A key cannot be added: its id or its token is in the store already."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class KeyStore:
    """An open key store; each change is one transaction that other processes see as a whole."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, *, busy_timeout: float = BUSY_TIMEOUT, read_only: bool = False
    ) -> Iterator[KeyStore]:
        """Open the store at ``path`` as `connected` does; raises `KeyStoreError`."""
        with connected(path, busy_timeout=busy_timeout, read_only=read_only) as connection:
            yield cls(connection, path)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads within see the same state of the store, as in a `transaction`."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()

    def revision(self) -> str:
        """Return text that is another one after each change of a key."""
        row = self._connection.execute("SELECT revision FROM store").fetchone()
        if row is None:
            raise KeyStoreError(f"{self._path}: {DAMAGED}")
        return str(row[0])

    def count(self) -> int:
        """Return the number of keys."""
        (count,) = self._connection.execute("SELECT count(*) FROM keys").fetchone()
        return int(count)

    def records(self) -> Iterator[KeyRecord]:
        """Yield all keys in the order of their ids; raises `KeyStoreError`."""
        with self.snapshot():
            yield from self._read("", ())

    def find(self, key_id: str) -> KeyRecord:
        """Return the key with this id; raises `KeyStoreError` if there is none."""
        with self.snapshot():
            records = list(self._read("WHERE id = ?", (key_id,)))
        if not records:
            raise KeyStoreError(f"{self._path}: there is no key with this id")
        return records[0]

    def add(self, records: Iterable[KeyRecord]) -> None:
        """Add keys, all or none; raises `DuplicateKeyError`."""
        with transaction(self._connection):
            for record in records:
                self._check_new(record)
                self._connection.execute(_PUT_KEY, _values(record))
                for token in record.tokens:
                    self._insert(record.id, token)

    def rotate(
        self, key_id: str, token: Token, *, overlap: float, expires: float | None
    ) -> tuple[KeyRecord, KeyRecord]:
        """Add a token, and let the others expire ``overlap`` seconds after it was created.

        ``expires`` becomes the key's expiry, unless it is ``None``; it never makes an older
        token valid for longer. Tokens that expired over 30 days ago are removed. Returns the key
        before and after. Raises `KeyStoreError`.
        """
        with transaction(self._connection):
            before = self.find(key_id)
            if before.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked; issue a key with another id")
            after = _rotated(before, token, overlap, expires)
            if after.state(token.created) == "expired":
                raise KeyStoreError(f"{key_id} has expired; renew it with --expires")
            if expires is not None and expires <= (after.not_before or 0.0):
                raise KeyStoreError(f"--expires: must be after not_before of {key_id}")
            self._connection.execute(
                "DELETE FROM tokens WHERE id = ? AND expires < ?",
                (key_id, token.created - _EXPIRED_KEPT),
            )
            self._insert(key_id, token)
            self._update(after)
        return before, after

    def withdraw(self, digest: bytes, before: KeyRecord | None, after: KeyRecord) -> None:
        """Remove a token that was just added, and the key with it if that was its only one.

        The key expires as ``before`` it was rotated, unless it was rotated again since. Other
        changes since then stay.
        """
        with transaction(self._connection):
            current = self.find(after.id)
            self._connection.execute("DELETE FROM tokens WHERE digest = ?", (digest,))
            if before is None:
                self._connection.execute(
                    "DELETE FROM keys WHERE id = ? AND id NOT IN (SELECT id FROM tokens)",
                    (after.id,),
                )
            elif current.tokens == after.tokens:
                self._update(replace(current, tokens=before.tokens, expires=before.expires))

    def revoke(self, key_id: str, now: float) -> bool:
        """Revoke a key permanently; return whether it was not revoked before."""
        with transaction(self._connection):
            record = self.find(key_id)
            if record.revoked is None:
                self._update(replace(record, revoked=now))
        return record.revoked is None

    def set_disabled(self, key_id: str, *, disabled: bool) -> bool:
        """Disable or enable a key; return whether that changed it.

        Raises `KeyStoreError` for a key that was revoked.
        """
        with transaction(self._connection):
            record = self.find(key_id)
            if record.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked, which is final")
            if record.disabled is not disabled:
                self._update(replace(record, disabled=disabled))
        return record.disabled is not disabled

    def write_last_used(self, times: Mapping[str, float]) -> None:
        """Write when keys were last used; a later time in the store stays."""
        with transaction(self._connection):
            self._connection.executemany(
                "INSERT INTO last_used SELECT id, ?2 FROM keys WHERE id = ?1 "
                "ON CONFLICT (id) DO UPDATE SET time = max(time, excluded.time)",
                times.items(),
            )

    def check_pages(self) -> None:
        """Read the whole file; raises `KeyStoreError` if a page of it is damaged."""
        if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise KeyStoreError(f"{self._path}: {DAMAGED}")

    def _read(self, condition: str, values: tuple[str, ...]) -> Iterator[KeyRecord]:
        tokens: dict[str, tuple[Token, ...]] = {}
        for key_id, *columns in self._connection.execute(f"{_TOKENS} {condition}", values):
            tokens[key_id] = (*tokens.get(key_id, ()), Token(*columns))
        for row in self._connection.execute(f"{_KEYS} {condition} ORDER BY id", values):
            try:
                yield _record(row, tokens.pop(row[0], ()))
            except (TypeError, ValueError):
                raise KeyStoreError(f"{self._path}: a key in it is not valid") from None

    def _check_new(self, record: KeyRecord) -> None:
        known = self._connection.execute(
            "SELECT revoked FROM keys WHERE id = ?", (record.id,)
        ).fetchone()
        if known is not None:
            was = "was revoked; its id is not used again" if known[0] else "exists already"
            raise DuplicateKeyError(f"the key {record.id} {was}", record.id)

    def _insert(self, key_id: str, token: Token) -> None:
        try:
            self._connection.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?)",
                (token.digest, key_id, token.created, token.expires),
            )
        except sqlite3.IntegrityError:
            text = f"another key has the token of {key_id}"
            raise DuplicateKeyError(text, key_id) from None

    def _update(self, record: KeyRecord) -> None:
        """Write a key and its tokens."""
        self._connection.execute(_PUT_KEY, _values(record))
        self._connection.executemany(
            "REPLACE INTO tokens VALUES (?, ?, ?, ?)",
            [(token.digest, record.id, token.created, token.expires) for token in record.tokens],
        )


def _rotated(record: KeyRecord, new: Token, overlap: float, expires: float | None) -> KeyRecord:
    limits = [new.created + overlap, record.expires]
    kept_from = new.created - _EXPIRED_KEPT
    tokens = [
        replace(token, expires=min(each for each in (*limits, token.expires) if each is not None))
        for token in record.tokens
        if token.expires is None or token.expires >= kept_from
    ]
    return replace(
        record,
        tokens=_in_order([*tokens, new]),
        expires=record.expires if expires is None else expires,
    )


def _in_order(tokens: Iterable[Token]) -> tuple[Token, ...]:
    return tuple(sorted(tokens, key=lambda token: (token.created, token.digest)))


def _values(record: KeyRecord) -> tuple[Any, ...]:
    """Return the columns of a key."""
    rates = (record.requests, record.misses)
    return (
        record.id,
        record.created,
        record.owner,
        " ".join(record.scopes),
        record.not_before,
        record.expires,
        *(rate and format_rate(rate) for rate in rates),
        record.note,
        record.disabled,
        record.revoked,
    )


@lru_cache(maxsize=64)
def _parse_scopes(text: str) -> tuple[Any, ...]:
    """Return scopes; raises `ValueError` for what we did not write."""
    scopes = tuple(text.split())
    if not scopes or not _SCOPES.issuperset(scopes):
        raise ValueError("not scopes")
    return scopes


def _record(row: tuple[Any, ...], tokens: tuple[Token, ...]) -> KeyRecord:
    """Return the key of a row; raises `ValueError` or `TypeError` for what we did not write."""
    key_id, created, owner, scopes, not_before, expires, requests, misses, *more = row
    note, disabled, revoked, last_used = more
    if not re.fullmatch(KEY_ID, key_id, re.ASCII):
        raise ValueError("not an id")
    if not tokens or any(len(token.digest) != _DIGEST_SIZE for token in tokens):
        raise ValueError("not a digest")
    times = [created, not_before, expires, revoked, last_used]
    times += [each for token in tokens for each in (token.created, token.expires)]
    if not all(each is None or isinstance(each, float) for each in times):
        raise ValueError("not a time")
    return KeyRecord(
        key_id,
        created,
        _in_order(tokens),
        owner,
        _parse_scopes(scopes),
        not_before,
        expires,
        requests and parse_rate(requests),
        misses and parse_rate(misses),
        note,
        bool(disabled),
        revoked,
        last_used,
    )
