"""The key store in any SQL database: reads of all keys, and changes by commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.keys.api_key import KEY_ID, ApiKey
from tornado_idv.keys.record import (
    API_KEY_COLUMNS,
    COLUMNS,
    EMPTY,
    KeyRecord,
    StoredKeys,
    Token,
    in_order,
    to_api_key,
    to_record,
    to_values,
)

_T = TypeVar("_T")
_COLUMNS = ", ".join(COLUMNS)
_KEYS = f"SELECT {_COLUMNS}, time FROM keys LEFT JOIN last_used USING (id)"  # noqa: S608 - constant
_ADD_KEY = f"INSERT INTO keys ({_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - constant
_API_KEYS = f"SELECT {API_KEY_COLUMNS} FROM tokens JOIN keys USING (id)"  # noqa: S608 - constant
_TOKENS = "SELECT id, digest, created, expires FROM tokens"
_ADD_DIGEST = "INSERT INTO tokens (digest, id, created, expires) VALUES (?, ?, ?, ?)"
_PUT_LAST_USED = (
    "INSERT INTO last_used (id, time) SELECT id, ? FROM keys WHERE id = ? "
    "ON CONFLICT (id) DO UPDATE SET time = excluded.time WHERE excluded.time > last_used.time"
)
_BATCH = 500
"""Values in one statement. SQLite allows 999."""
_EXPIRED_KEPT = 30 * 86400.0
"""Seconds until an expired token is removed from the store."""


class DuplicateKeyError(KeyStoreError):
    """A key cannot be added: its id or its token is in the store already."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class InvalidRowError(KeyStoreError):
    """A row of the store is invalid: this service did not write it."""


class KeyDatabase(Protocol):
    """A connection to the SQL database of a key store. Its methods raise `KeyStoreError`.

    The database has the tables ``keys``, ``tokens`` and ``last_used``. The table ``store`` has one
    row with the ``revision``, a text that each change of ``keys`` or ``tokens`` replaces.
    Statements have ``?`` for each value. Times are floating-point numbers, and digests are bytes.
    """

    def execute(self, sql: str, values: Sequence[object] = ()) -> Iterable[Sequence[Any]]:
        """Run a statement and return its rows."""

    def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> object:
        """Run a statement for each row of values."""

    def changed_rows(
        self, sql: str, before: Any
    ) -> tuple[Container[str] | None, Iterable[Sequence[Any]], Any]:
        """Return the keys that may have changed since an earlier call, with their rows.

        ``sql`` selects the rows of all keys: id, digest of a token, and more columns. ``before`` is
        the state from the earlier call, or ``None``. Returns the ids of the keys, or ``None`` for
        all keys, then the rows, then the current state. For use within `reading`.
        """

    def writing(self) -> AbstractContextManager[None]:
        """Make all changes in one transaction, without other writers. May be nested."""

    def reading(self) -> AbstractContextManager[None]:
        """Make all reads in one transaction, so they see the same state."""


class KeyStore:
    """An open key store. Each change is one transaction, visible to other processes as a whole.

    ``name`` is the name of the store in messages.
    """

    def __init__(self, database: KeyDatabase, name: str) -> None:
        self._database = database
        self._name = name

    def revision(self) -> str:
        """Return the revision. Each change of a key replaces it."""
        for (revision,) in self._database.execute("SELECT revision FROM store"):
            return str(revision)
        raise KeyStoreError(f"{self._name}: the key store is damaged; restore it from a backup")

    def count(self) -> int:
        ((count,),) = self._database.execute("SELECT count(*) FROM keys")
        return int(count)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make several changes, all or none, with one commit on exit.

        Raises `UncertainChangeError` if services cannot load the store after the commit, for
        example because a row was edited by hand. They keep their previous keys then.
        """
        with self._database.writing():
            yield
        try:
            self.api_keys(EMPTY)
        except InvalidRowError as error:
            text = f"{error}; the change was made, but services keep their old keys: repair it"
            raise UncertainChangeError(text) from None
        except KeyStoreError:
            pass  # the change was made; only reading failed

    def records(self) -> Iterator[KeyRecord]:
        """Yield all keys in the order of their ids. Raises `KeyStoreError`."""
        with self._database.reading():
            yield from self._read("", ())

    def api_keys(self, known: StoredKeys) -> StoredKeys:
        """Return the keys for authentication, one for each token.

        ``known`` is the last snapshot: only changes since then are read, and unchanged keys stay
        the same objects. Raises `KeyStoreError`.
        """
        if self.revision() == known.revision:
            return known
        with self._database.reading():
            revision = self.revision()
            changed, rows, state = self._database.changed_rows(_API_KEYS, known.state)
            keys: dict[bytes, ApiKey] = {}
            if changed is not None:
                keys = {each: key for each, key in known.keys.items() if key.id not in changed}
            try:
                for row in rows:
                    key = self._convert(row[0], to_api_key, row)
                    before = known.keys.get(key.digest)
                    keys[key.digest] = before if before == key else key
            finally:
                del rows  # a cursor in a traceback would keep the store locked
            if len({key.id for key in keys.values()}) < self.count():
                raise InvalidRowError(f"{self._name}: a key in it is not valid: it has no token")
        return StoredKeys(keys, revision, state)

    def find(self, key_id: str) -> KeyRecord:
        """Return the key with this id. Raises `KeyStoreError` for an unknown id."""
        with self._database.reading():
            return self._find(key_id)

    def by_id(self) -> dict[str, KeyRecord]:
        """Return all keys, for use within a `transaction`."""
        return {record.id: record for record in self._read("", ())}

    def add(self, records: Iterable[KeyRecord], *, replaced: Sequence[str] = ()) -> None:
        """Add keys, all or none. First remove the keys with the ids ``replaced``.

        Raises `DuplicateKeyError`.
        """
        remaining = iter(records)
        with self._database.writing():
            self._in("DELETE FROM tokens WHERE id", replaced)
            self._in("DELETE FROM keys WHERE id", replaced)
            while batch := list(islice(remaining, _BATCH)):
                self._add_batch(batch)

    def rotate(
        self, key_id: str, token: Token, *, overlap: float, expires: float | None
    ) -> tuple[KeyRecord, KeyRecord]:
        """Add a token. The older tokens expire ``overlap`` seconds after its creation.

        ``expires`` replaces the expiry of the key, unless it is ``None``. No older token becomes
        valid for longer. Tokens are removed 30 days after their expiry. Returns the key before and
        after. Raises `KeyStoreError`.
        """
        with self._database.writing():
            before = self._find(key_id)
            if before.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked; issue a key with another id")
            after = _rotated(before, token, overlap, expires)
            if after.state(token.created) == "expired":
                raise KeyStoreError(f"{key_id} has expired; renew it with --expires")
            if expires is not None and expires <= (after.not_before or 0.0):
                raise KeyStoreError(f"--expires: must be after not_before of {key_id}")
            self.add([after], replaced=[key_id])
        return before, after

    def revoke(self, key_id: str, now: float) -> tuple[KeyRecord, KeyRecord]:
        """Revoke a key permanently. Return it before and after.

        Both are equal for a key already revoked.
        """
        with self._database.writing():
            before = after = self._find(key_id)
            if before.revoked is None:
                after = replace(before, revoked=now)
                self.add([after], replaced=[key_id])
        return before, after

    def set_disabled(self, key_id: str, *, disabled: bool) -> tuple[KeyRecord, KeyRecord]:
        """Disable or enable a key. Return it before and after.

        Raises `KeyStoreError` for a revoked key.
        """
        with self._database.writing():
            before = after = self._find(key_id)
            if before.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked permanently")
            if before.disabled is not disabled:
                after = replace(before, disabled=disabled)
                self.add([after], replaced=[key_id])
        return before, after

    def write_last_used(self, times: Mapping[str, float]) -> None:
        """Write the last use of keys. A later time in the store stays."""
        rows = [(used, key_id) for key_id, used in times.items()]
        with self._database.writing():
            self._database.executemany(_PUT_LAST_USED, rows)

    def _find(self, key_id: str) -> KeyRecord:
        for record in list(self._read("WHERE id = ?", (key_id,))):
            return record
        raise KeyStoreError(f"{self._name}: there is no key with this id")

    def _read(self, condition: str, values: tuple[str, ...]) -> Iterator[KeyRecord]:
        tokens: dict[str, tuple[Token, ...]] = {}
        for key_id, *columns in self._database.execute(f"{_TOKENS} {condition}", values):
            tokens[key_id] = (*tokens.get(key_id, ()), Token(*columns))
        for row in self._database.execute(f"{_KEYS} {condition} ORDER BY id", values):
            yield self._convert(row[0], to_record, row, tokens.pop(row[0], ()))

    def _convert(self, key_id: object, convert: Callable[..., _T], *values: object) -> _T:
        try:
            return convert(*values)
        except (TypeError, ValueError):
            is_id = isinstance(key_id, str) and re.fullmatch(KEY_ID, key_id, re.ASCII)
            name = f": {key_id}" if is_id else ""
            raise InvalidRowError(f"{self._name}: a key in it is not valid{name}") from None

    def _add_batch(self, batch: Sequence[KeyRecord]) -> None:
        known = dict(self._in("SELECT id, revoked FROM keys WHERE id", [each.id for each in batch]))
        digests = [token.digest for record in batch for token in record.tokens]
        used = {digest for (digest,) in self._in("SELECT digest FROM tokens WHERE digest", digests)}
        for record in batch:
            if record.id in known:
                revoked = known[record.id]
                was = "was revoked; its id is not used again" if revoked else "exists already"
                raise DuplicateKeyError(f"the key {record.id} {was}", record.id)
            known[record.id] = None
            for token in record.tokens:
                if token.digest in used:
                    text = f"another key has the token of {record.id}"
                    raise DuplicateKeyError(text, record.id)
                used.add(token.digest)
        self._database.executemany(_ADD_KEY, map(to_values, batch))
        rows = [
            (token.digest, record.id, token.created, token.expires)
            for record in batch
            for token in record.tokens
        ]
        self._database.executemany(_ADD_DIGEST, rows)

    def _in(self, sql: str, values: Iterable[object]) -> list[Any]:
        """Run a statement with ``IN`` for the values, in batches, and return all rows."""
        rows: list[Any] = []
        remaining = iter(values)
        while batch := list(islice(remaining, _BATCH)):
            rows += self._database.execute(f"{sql} IN ({', '.join('?' * len(batch))})", batch)
        return rows


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
        tokens=in_order([*tokens, new]),
        expires=record.expires if expires is None else expires,
    )
