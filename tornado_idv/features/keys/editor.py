"""The keys of a key store, and the changes that commands make to them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.keys.store import EMPTY, InvalidRowError, KeyStore, check_row, parse_scopes
from tornado_idv.units import Rate, format_rate, parse_rate

State = Literal["valid", "not valid yet", "expired", "disabled", "revoked"]


class Token(Struct, frozen=True, gc=False):
    """The SHA-256, creation and expiry of a token. Without ``expires``, it expires with its key."""

    digest: bytes
    created: float
    expires: float | None = None

    @property
    def end(self) -> float:
        """The expiry, or infinity."""
        return inf if self.expires is None else self.expires

    def __repr__(self) -> str:
        """Return a representation without the digest."""
        return f"Token(created={self.created}, expires={self.expires})"


class KeyRecord(Struct, frozen=True, gc=False):
    """A key of the store. Times are Unix times in seconds, or ``None`` if not set.

    ``tokens`` are sorted by time of creation.
    """

    id: str
    created: float
    tokens: tuple[Token, ...]
    owner: str = ""
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    not_before: float | None = None
    expires: float | None = None
    requests: Rate | None = None
    misses: Rate | None = None
    note: str = ""
    disabled: bool = False
    revoked: float | None = None
    last_used: float | None = None

    @property
    def valid_until(self) -> float:
        """The Unix time when the key or its last token expires. If neither expires, infinity."""
        end = max(token.end for token in self.tokens)
        return end if self.expires is None else min(end, self.expires)

    def state(self, now: float) -> State:
        if self.revoked is not None:
            return "revoked"
        if self.disabled:
            return "disabled"
        if now >= self.valid_until:
            return "expired"
        return "valid" if self.not_before is None or now >= self.not_before else "not valid yet"


Change = tuple[KeyRecord, KeyRecord]
"""A key before and after a change. If nothing was changed, both are equal."""
COLUMNS = tuple(each for each in KeyRecord.__struct_fields__ if each not in ("tokens", "last_used"))
"""The columns of the database table ``keys``."""
TIMES = ("not_before", "expires", "revoked", "last_used")
"""The times of a `KeyRecord` that may be ``None``."""
_COLUMNS = ", ".join(COLUMNS)
_KEYS = f"SELECT {_COLUMNS}, time FROM keys LEFT JOIN last_used USING (id)"  # noqa: S608 - constant
_ADD_KEY = f"INSERT INTO keys ({_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - constant
_TOKENS = "SELECT id, digest, created, expires FROM tokens"
_ADD_DIGEST = "INSERT INTO tokens (digest, id, created, expires) VALUES (?, ?, ?, ?)"
_BATCH = 500
"""Maximum number of values in one statement. SQLite allows 999."""
_EXPIRED_KEPT = 30 * 86400.0
"""A rotation removes tokens that expired more than this many seconds ago."""


def in_order(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """Sort tokens by time of creation, as in a `KeyRecord`."""
    return tuple(sorted(tokens, key=lambda token: (token.created, token.digest)))


def to_values(record: KeyRecord) -> tuple[Any, ...]:
    """Return the values of a key for `COLUMNS`."""
    values = {name: getattr(record, name) for name in COLUMNS}
    values |= {name: format_rate(values[name]) for name in ("requests", "misses") if values[name]}
    return tuple({**values, "scopes": " ".join(record.scopes)}.values())


def to_record(row: Sequence[Any], tokens: tuple[Token, ...]) -> KeyRecord:
    """Return the key in a database row. Raises `ValueError` or `TypeError` for an invalid row."""
    values = dict(zip((*COLUMNS, "last_used"), row, strict=True))
    times = [values[name] for name in ("created", *TIMES)]
    times += [each for token in tokens for each in (token.created, token.expires)]
    check_row(values["id"], [token.digest for token in tokens], times)
    if not tokens:
        raise ValueError("no token")
    values |= {name: parse_rate(values[name]) for name in ("requests", "misses") if values[name]}
    values |= {"scopes": parse_scopes(values["scopes"]), "disabled": bool(values["disabled"])}
    return KeyRecord(tokens=in_order(tokens), **values)


class DuplicateKeyError(KeyStoreError):
    """A key cannot be added: its id or its token is in the store already."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class KeyEditor(KeyStore):
    """An open key store with methods to change it.

    Each change is one transaction: other processes see all of it or nothing.
    """

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Combine several changes into one transaction, and commit it on exit.

        Raises `UncertainChangeError` if the committed store has an invalid row, for example after
        an edit by hand. Services cannot load such a store, and use the keys they loaded before.
        """
        with self._database.writing():
            yield
        try:
            self.api_keys(EMPTY)
        except InvalidRowError as error:
            text = f"{error}; the change was made, but has no effect until this key is repaired"
            raise UncertainChangeError(text) from None
        except KeyStoreError:
            pass  # the change was made; only reading failed

    def records(self) -> Iterator[KeyRecord]:
        """Yield all keys in the order of their ids. Raises `KeyStoreError`."""
        with self._database.reading():
            yield from self._read("", ())

    def find(self, key_id: str) -> KeyRecord:
        """Return the key with this id. Raises `KeyStoreError` for an unknown id."""
        with self._database.reading():
            return self._find(key_id)

    def by_id(self) -> dict[str, KeyRecord]:
        """Return all keys by id. Call this method within a `transaction`."""
        return {record.id: record for record in self._read("", ())}

    def add(self, records: Iterable[KeyRecord], *, replaced: Sequence[str] = ()) -> None:
        """Add keys with different ids and tokens, all or none. First remove the keys ``replaced``.

        Raises `DuplicateKeyError` for an id or a token that is in the store.
        """
        remaining = iter(records)
        with self._database.writing():
            self._in("DELETE FROM tokens WHERE id", replaced)
            self._in("DELETE FROM keys WHERE id", replaced)
            while batch := list(islice(remaining, _BATCH)):
                self._add_batch(batch)

    def rotate(self, key_id: str, token: Token, *, overlap: float, expires: float | None) -> Change:
        """Add a token. The older tokens expire ``overlap`` seconds after its creation.

        Unless ``expires`` is ``None``, it is the new expiry of the key. It does not prolong older
        tokens. Tokens that expired more than 30 days ago are removed. Raises `KeyStoreError`.
        """
        with self._database.writing():
            before = self._find(key_id)
            if before.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked; issue a key with another id")
            limit = min(token.created + overlap, inf if before.expires is None else before.expires)
            kept = [each for each in before.tokens if each.end >= token.created - _EXPIRED_KEPT]
            older = [replace(each, expires=min(limit, each.end)) for each in kept]
            end = before.expires if expires is None else expires
            after = replace(before, tokens=in_order([*older, token]), expires=end)
            if after.state(token.created) == "expired":
                raise KeyStoreError(f"{key_id} has expired; renew it with --expires")
            if expires is not None and expires <= (after.not_before or 0.0):
                raise KeyStoreError(f"--expires: must be after not_before of {key_id}")
            self.add([after], replaced=[key_id])
        return before, after

    def revoke(self, key_id: str, now: float) -> Change:
        """Revoke a key permanently, unless it was revoked already."""
        with self._database.writing():
            before = after = self._find(key_id)
            if before.revoked is None:
                after = replace(before, revoked=now)
                self.add([after], replaced=[key_id])
        return before, after

    def set_disabled(self, key_id: str, *, disabled: bool) -> Change:
        """Disable or enable a key. Raises `KeyStoreError` for a revoked key."""
        with self._database.writing():
            before = after = self._find(key_id)
            if before.revoked is not None:
                raise KeyStoreError(f"{key_id} was revoked permanently")
            if before.disabled is not disabled:
                after = replace(before, disabled=disabled)
                self.add([after], replaced=[key_id])
        return before, after

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

    def _add_batch(self, batch: Sequence[KeyRecord]) -> None:
        known = dict(self._in("SELECT id, revoked FROM keys WHERE id", [each.id for each in batch]))
        digests = [token.digest for record in batch for token in record.tokens]
        used = {digest for (digest,) in self._in("SELECT digest FROM tokens WHERE digest", digests)}
        for record in batch:
            if record.id in known:
                revoked = known[record.id]
                was = "was revoked; its id cannot be used again" if revoked else "exists already"
                raise DuplicateKeyError(f"the key {record.id} {was}", record.id)
            if any(token.digest in used for token in record.tokens):
                raise DuplicateKeyError(f"another key has the token of {record.id}", record.id)
        self._database.executemany(_ADD_KEY, map(to_values, batch))
        rows = [
            (token.digest, record.id, token.created, token.expires)
            for record in batch
            for token in record.tokens
        ]
        self._database.executemany(_ADD_DIGEST, rows)

    def _in(self, sql: str, values: Iterable[object]) -> list[Any]:
        """Run ``sql`` with ``IN (…)`` appended, once for each batch of values. Return all rows."""
        rows: list[Any] = []
        remaining = iter(values)
        while batch := list(islice(remaining, _BATCH)):
            rows += self._database.execute(f"{sql} IN ({', '.join('?' * len(batch))})", batch)
        return rows
