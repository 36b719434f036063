"""The keys of a running service, from `config.yaml` and from the key store.

Every process reads changes of the store on its own, without the supervisor.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from tornado_idv.config.checks import key_conflicts
from tornado_idv.config.settings import AuthSettings
from tornado_idv.daemon_thread import DaemonThread
from tornado_idv.errors import (
    KeyStoreError,
    MissingKeyStoreError,
    SettingError,
    StartError,
    format_traceback,
)
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import EMPTY, KeyStoreLocation, StoredKeys, locate_store
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.service.part import Prepared, background

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.25
_MAX_AGE = 1.0
"""Seconds that a read of the store counts as current, from its start. If the last read is older, an
unknown key is undetermined rather than invalid, because the store may have it now."""
_WRITE_INTERVAL = 60.0
"""Seconds between two writes of the keys' last use to the store."""
_STOP_TIMEOUT = 2.0
"""Maximum time that a stop waits for the key store, in seconds."""
_BUSY_TIMEOUT = 0.5
_SERVER_TIMEOUT = 0.5
_SERVER_INTERVAL = 10.0
"""Seconds between checks that only one server of a replicated store accepts changes."""


class StoreFollower:
    """Reads changes of a key store into ``snapshot``, and writes the last use of keys.

    Reads and writes may wait for the disk, a server or a lock, so call the methods only through
    ``in_thread``. A poll of a file opens it, compares the revision of the store with the last one,
    and closes it within 0.2 ms.

    ``error`` is the current problem with the store, or ``None``. ``since`` is the Unix time at
    which ``error`` last changed. ``timer`` returns monotonic seconds, ``clock`` Unix time.
    """

    def __init__(
        self,
        location: KeyStoreLocation,
        timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.location = location
        self.in_thread = DaemonThread("key store")
        self.error: str | None = None
        self.since = clock()
        self._check_at = 0.0
        self._known: dict[bytes, ApiKey] = {}
        self._timer = timer
        self._clock = clock
        self.snapshot = EMPTY
        """The keys of the last successful read."""
        self._written: dict[str, float] = {}
        self._write_failed = False

    def read(self) -> None:
        """Read changes of the store since the last call. Raises `KeyStoreError`.

        An unchanged key stays the same object. Without any change, ``snapshot`` is the same object.
        """
        with self.location.opened(busy_timeout=_BUSY_TIMEOUT) as store:
            snapshot = store.api_keys(EMPTY if self.location.overwritten else self.snapshot)
        self.location.overwritten = False
        if snapshot is not self.snapshot:
            self._warn_of_returned(snapshot.keys)
            self.snapshot = snapshot

    def poll(self) -> None:
        """Read changes of the store. Log a failure once; the next call tries again.

        Every 10 s, also check that no second server of the store accepts changes.
        """
        try:
            self.read()
            if self._timer() >= self._check_at or self.error is not None:
                self.location.require_one_server(_SERVER_TIMEOUT)
                self._check_at = self._timer() + _SERVER_INTERVAL
        except KeyStoreError as error:
            if self.error is None:
                reason = str(error)
                if isinstance(error, MissingKeyStoreError):
                    reason = f"{self.location.name}: the key store is gone; restore it"
                text = "%s; until this is repaired, the keys that were read before stay valid"
                _log.error(text, reason)
                self.error, self.since = reason, self._clock()
        else:
            if self.error is not None:
                _log.info("%s: the key store can be read again", self.location.name)
                self.error, self.since = None, self._clock()

    def _warn_of_returned(self, keys: Mapping[bytes, ApiKey]) -> None:
        """Warn of keys that became valid again, or expire later than before.

        An import may cause this. So may a restore or a failover, if it loses the last changes.
        """
        returned = set()
        for token_digest, key in keys.items():
            before = self._known.get(token_digest, key)
            if before is not key and (
                before.rejected == "revoked" != key.rejected
                or (before.rejected is None and key.expires > before.expires)
            ):
                returned.add(key.id)
        self._known.update(keys)  # removed keys stay in it, because they may return, too
        for key_id in sorted(returned):
            text = "%s: a failover, a restore or an import has undone the revocation of the key %s,"
            advice = "or delayed its expiry; revoke the key again unless this is intended"
            _log.warning(f"{text} {advice}", self.location.name, key_id)

    def write_last_used(self, times: Mapping[str, float], *, is_last: bool = False) -> None:
        """Write the last use of keys in the store.

        A failure is logged once. With ``is_last`` it is logged again, because the times are lost.
        """
        ids = {key.id for key in self.snapshot.keys.values()}
        later = {
            key_id: used
            for key_id, used in times.items()
            if key_id in ids and used > self._written.get(key_id, 0.0)
        }
        if not later or self.error is not None:
            return
        try:
            with self.location.opened(busy_timeout=_BUSY_TIMEOUT) as store:
                store.write_last_used(later)
        except KeyStoreError as error:
            if is_last or not self._write_failed:
                outcome = "not written" if is_last else "written later"
                _log.warning("%s; the last use of keys is %s", error, outcome)
            self._write_failed = True
        else:
            self._written.update(later)
            self._write_failed = False

    def close(self, times: Mapping[str, float]) -> None:
        """Write the last use of keys, and close the store."""
        self.write_last_used(times, is_last=True)
        self.location.close()


class Keys:
    """Keeps all keys of the service in ``ring``. ``store`` reads a configured key store."""

    def __init__(self, kinds: Kinds) -> None:
        self.ring = KeyRing([])
        self.store: StoreFollower | None = None
        self._kinds = kinds
        self._configured: tuple[ApiKey, ...] = ()
        self._stored = EMPTY  # the stored keys that the ring has now
        self._leaving: set[asyncio.Task[None]] = set()
        self._call: asyncio.Future[None] | None = None  # of `follow`

    @asynccontextmanager
    async def opened(self, auth: AuthSettings) -> AsyncIterator[Self]:
        """Load the keys of the configuration and of its store; apply changes of the store.

        Raises `StartError` and `SettingError` as `prepare`.
        """
        (await self.prepare(auth)).commit()
        try:
            async with background(self.follow()):
                yield self
        finally:
            await self.close()

    async def prepare(self, auth: AuthSettings) -> Prepared:
        """Prepare to use the configured keys and those of the configured store.

        Raises `StartError` if a newly configured store cannot be read, and `SettingError` for a
        key that is both in the configuration and in the store.
        """
        before, store, until = self.store, self.store, inf
        if auth.store is None:
            store = None
        elif store is None or store.location.setting != auth.store:
            until = time.monotonic() + _MAX_AGE
            store = await _open(auth.store, self._kinds)
        configured = tuple(each.api_key for each in auth.keys)
        stored = EMPTY if store is None else store.snapshot

        async def abort() -> None:
            if store is not None and store is not before:
                await _close(store, {})

        merged = self.ring.merged((), configured)
        if store is not None:
            merged, conflicts = await store.in_thread(self._merge, store, configured, stored)
            for conflict in conflicts:
                await abort()
                raise conflict

        def commit() -> None:
            ring, self.store, self._configured = self.ring, store, configured
            self._stored = EMPTY if store is None else store.snapshot
            changed = self._stored is not stored
            ring.replace(ring.merged(self._stored.keys.values(), configured) if changed else merged)
            ring.complete_until = ring.complete_until if store is before else until
            if before is not None and before is not store:
                if self._call is not None:
                    self._call.cancel()  # it may hang
                leaving = asyncio.create_task(_close(before, self._last_used()))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

        return Prepared(commit, abort)

    async def follow(self) -> None:
        """Apply changes of the store, and write the last use of keys to it, until cancelled."""
        write_at = time.monotonic() + _WRITE_INTERVAL
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            store = self.store
            if store is None:
                continue
            try:
                self._call = asyncio.ensure_future(self._poll(store))
                await self._call
                if time.monotonic() >= write_at:
                    write_at = time.monotonic() + _WRITE_INTERVAL
                    self._call = store.in_thread(store.write_last_used, self._last_used())
                    await self._call
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                _log.error("reading or writing the key store failed:\n%s", format_traceback(error))

    async def close(self) -> None:
        """Write the last use of keys to the store, and close the store."""
        if self.store is not None:
            await _close(self.store, self._last_used())
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _poll(self, store: StoreFollower) -> None:
        since = time.monotonic()
        await store.in_thread(store.poll)
        while store is self.store and store.snapshot is not self._stored:
            stored, configured = store.snapshot, self._configured
            merged, errors = await store.in_thread(self._merge, store, configured, stored)
            if store is self.store and configured is self._configured:  # not replaced meanwhile
                self.ring.replace(merged)
                self._stored = stored
                text = "config.yaml: %s; until then, the key in the store is ignored"
                for error in errors:
                    _log.error(text, error)
        if store is self.store:
            self.ring.complete_until = -inf if store.error else since + _MAX_AGE

    def _last_used(self) -> dict[str, float]:
        """Return the times of last use by key id, for the store. Configured keys are omitted."""
        configured = {key.id for key in self._configured}
        return {key: used for key, used in self.ring.last_used.items() if key not in configured}

    def _merge(
        self, store: StoreFollower, configured: Sequence[ApiKey], stored: StoredKeys
    ) -> tuple[dict[bytes, ApiKey], list[SettingError]]:
        """Return all keys by digest, and an error for each configured key that is also stored."""
        keys = stored.keys.values()
        conflicts = key_conflicts(configured, keys, store.location.name)
        return self.ring.merged(keys, configured), list(conflicts)


async def _open(setting: Path | SecretStr, kinds: Kinds) -> StoreFollower:
    try:
        store = StoreFollower(locate_store(setting, kinds))
        await store.in_thread(store.read)
    except KeyStoreError as error:
        raise StartError(f"auth.store: {error}") from None
    return store


async def _close(store: StoreFollower, times: Mapping[str, float]) -> None:
    try:
        await asyncio.wait_for(store.in_thread(store.close, times), _STOP_TIMEOUT)
    except TimeoutError:
        text = "%s: the key store does not respond; the last use of keys is not written"
        _log.warning(text, store.location.name)
