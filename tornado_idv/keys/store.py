"""The key store in any SQL database: its location, and the operations of a running service.

Plugins implement the locations and their databases.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from pydantic import SecretStr

from tornado_idv.errors import KeyStoreError
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.api_key import KEY_ID, ApiKey, Scope
from tornado_idv.registry import load_class
from tornado_idv.units import parse_rate

_T = TypeVar("_T")
BUSY_TIMEOUT = 5.0
"""Maximum time that a command waits for another writer, in seconds."""
_API_KEYS = (
    "SELECT id, digest, tokens.expires, owner, scopes, not_before, keys.expires, requests, misses, "
    "disabled, revoked FROM tokens JOIN keys USING (id)"
)
"""Selects the row of each token, for `to_api_key`."""
_PUT_LAST_USED = (
    "INSERT INTO last_used (id, time) SELECT id, ? FROM keys WHERE id = ? "
    "ON CONFLICT (id) DO UPDATE SET time = excluded.time WHERE excluded.time > last_used.time"
)
_SCOPES = frozenset(get_args(Scope))
_DIGEST_SIZE = 32

_scope_set = lru_cache(maxsize=64)(frozenset[Scope])
"""Makes keys with the same scopes share one set. This saves 200 bytes for each key."""


class InvalidRowError(KeyStoreError):
    """Raised for an invalid row of the key store, such as one that another program has written."""


class KeyDatabase(Protocol):
    """A connection to the SQL database of a key store. Its methods raise `KeyStoreError`.

    The database has the tables ``keys``, ``tokens`` and ``last_used``. The table ``store`` has one
    row with the ``revision``, a text that each change of ``keys`` or ``tokens`` replaces.
    Statements have ``?`` for each value. Times are Unix times as floats, and digests are bytes.
    """

    def execute(self, sql: str, values: Sequence[object] = ()) -> Iterable[Sequence[Any]]:
        """Run a statement and return its rows."""

    def executemany(self, sql: str, rows: Iterable[Sequence[object]]) -> object:
        """Run a statement for each row of values."""

    def changed_rows(
        self, sql: str, before: Any
    ) -> tuple[Container[str] | None, Iterable[Sequence[Any]], Any]:
        """Return the ids and rows of the keys that may have changed, and a state for the next call.

        ``sql`` selects the rows of all keys: id, digest of a token, and more columns. ``before`` is
        the state from the previous call, or ``None`` in the first call. The ids are ``None`` if the
        rows are those of all keys. Call it within `reading`.
        """

    def writing(self) -> AbstractContextManager[None]:
        """Open a transaction for changes, without other writers. May be nested."""

    def reading(self) -> AbstractContextManager[None]:
        """Open a transaction for reads, so that all of them see the same state."""


@dataclass(frozen=True, repr=False, slots=True)
class StoredKeys:
    """All keys of a store at one time, one for each token.

    ``keys`` maps the digest of each token to its key. ``revision`` is the revision of the store.
    The next read needs ``state`` to find changes (see `KeyDatabase.changed_rows`).
    """

    keys: Mapping[bytes, ApiKey]
    revision: str | None
    state: object


EMPTY = StoredKeys({}, None, None)
"""The snapshot before the first read."""


class KeyStore:
    """An open key store. ``name`` is the name of the store in messages."""

    def __init__(self, database: KeyDatabase, name: str) -> None:
        self._database = database
        self._name = name

    def revision(self) -> str:
        """Return the revision of the store, a text that each change of a key replaces."""
        for (revision,) in self._database.execute("SELECT revision FROM store"):
            return str(revision)
        raise KeyStoreError(f"{self._name}: the key store is damaged; restore it from a backup")

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
            ((count,),) = self._database.execute("SELECT count(*) FROM keys")
            if len({key.id for key in keys.values()}) < count:
                raise InvalidRowError(f"{self._name}: a key in the key store has no token")
        return StoredKeys(keys, revision, state)

    def write_last_used(self, times: Mapping[str, float]) -> None:
        """Write the last use of keys. If the store already has a later time, that time stays."""
        rows = [(used, key_id) for key_id, used in times.items()]
        with self._database.writing():
            self._database.executemany(_PUT_LAST_USED, rows)

    def _convert(self, key_id: object, convert: Callable[..., _T], *values: object) -> _T:
        try:
            return convert(*values)
        except (TypeError, ValueError):
            name = f": {key_id}" if isinstance(key_id, str) and KEY_ID.fullmatch(key_id) else ""
            raise InvalidRowError(f"{self._name}: a key in it is not valid{name}") from None


class KeyStoreLocation(ABC):
    """The location of a key store. Only one thread at a time may use it.

    ``setting`` is ``auth.store``: a path, or a URL, possibly with a password. ``name`` is the name
    of the store in messages, never with a password. If ``overwritten`` is true, keys may have
    changed without a change of the revision. A reader of all keys sets it to false.
    """

    def __init__(self, setting: Path | SecretStr, name: str) -> None:
        self.setting = setting
        self.name = name
        self.overwritten = False

    @contextmanager
    def opened(
        self, *, busy_timeout: float = BUSY_TIMEOUT, read_only: bool = False
    ) -> Iterator[KeyStore]:
        """Open the store; see `connected`. Raises `KeyStoreError`."""
        with self.connected(busy_timeout=busy_timeout, read_only=read_only) as database:
            yield KeyStore(database, self.name)

    @abstractmethod
    def connected(
        self, *, busy_timeout: float, read_only: bool
    ) -> AbstractContextManager[KeyDatabase]:
        """Connect to the store.

        ``busy_timeout`` is the maximum wait for another writer, in seconds. With ``read_only``
        nothing is written. The connection may be kept for the next call. Raises `KeyStoreError`,
        or its subclass `MissingKeyStoreError`.
        """

    @abstractmethod
    def create(self) -> bool:
        """Create an empty store. Return false for an existing store. Raises `KeyStoreError`."""

    def require_one_server(self, timeout: float) -> None:  # noqa: B027 - a file has none
        """Raise `KeyStoreError` if a second server of the store's database accepts writes.

        Other servers have ``timeout`` seconds to respond.
        """

    def warnings(self) -> Sequence[str]:
        """Return advice for the operator about an opened store."""
        return ()

    def close(self) -> None:  # noqa: B027 - a file is open only while it is used
        """Close a connection that was kept for the next call of `connected`."""


def locate_store(setting: Path | SecretStr, kinds: Kinds) -> KeyStoreLocation:
    """Return the location of a key store, without opening it. A path has an empty scheme.

    Raises `KeyStoreError` for a scheme without a plugin, and `StartError` for a broken plugin.
    """
    scheme = "" if isinstance(setting, Path) else setting.get_secret_value().partition("://")[0]
    if scheme not in kinds.key_stores:
        known = ", ".join(f"{each}://" for each in sorted(kinds.key_stores) if each) or "none"
        place = "this URL of a key store" if scheme else "a key store in a file"
        raise KeyStoreError(f"no plugin supports {place}; supported: {known}")
    location: KeyStoreLocation = load_class(kinds.key_stores[scheme])(setting)
    return location


@lru_cache(maxsize=64)
def parse_scopes(text: str) -> tuple[Any, ...]:
    """Parse scopes separated by spaces. Raises `ValueError` for invalid text."""
    scopes = tuple(text.split())
    if not scopes or not _SCOPES.issuperset(scopes):
        raise ValueError("not scopes")
    return scopes


def check_row(key_id: str, digests: Iterable[bytes], times: Iterable[object]) -> None:
    """Raise `ValueError` or `TypeError` for invalid values in a row of the key store."""
    if not KEY_ID.fullmatch(key_id):
        raise ValueError("not an id")
    if any(len(each) != _DIGEST_SIZE for each in digests):
        raise ValueError("not a digest")
    if not all(each is None or isinstance(each, float) for each in times):
        raise ValueError("not a time")


def to_api_key(row: Sequence[Any]) -> ApiKey:
    """Convert a row of `_API_KEYS` to a key. Raises `ValueError` or `TypeError`."""
    key_id, digest, token_expires, owner, scopes, not_before, expires, *more = row
    requests, misses, disabled, revoked = more
    check_row(key_id, [digest], [token_expires, not_before, expires, revoked])
    rejected = "revoked" if revoked is not None else "disabled" if disabled else None
    ends = [inf if each is None else each for each in (token_expires, expires)]
    return ApiKey(
        key_id,
        digest,
        owner,
        _scope_set(parse_scopes(scopes)),
        -inf if not_before is None else not_before,
        -inf if rejected else min(ends),  # always expired
        requests and parse_rate(requests),
        misses and parse_rate(misses),
        rejected=rejected,
    )
