"""The keys of a running service, from `config.yaml` and from the key store.

Every process reads changes of the store on its own, without the supervisor.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, Self

from pydantic import SecretStr

from tornado_idv.config.checks import key_conflicts
from tornado_idv.config.settings import AuthSettings
from tornado_idv.errors import KeyStoreError, SettingError, StartError, format_traceback
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.store import locate_store
from tornado_idv.lookup.deadlines import is_cancelled
from tornado_idv.service.part import Prepared

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.25
_MAX_AGE = 1.0
"""Seconds that a read of the store counts as current, from its start. If the last read is older, an
unknown key is undetermined rather than invalid, because the store may have it now."""
_WRITE_INTERVAL = 60.0
"""Seconds between two writes of the keys' last use to the store."""
_STOP_TIMEOUT = 2.0
"""Maximum time that a stop waits for the key store, in seconds."""


class Keys:
    """Keeps all keys of the service in ``ring``. ``store`` reads a configured key store."""

    def __init__(self, kinds: Kinds) -> None:
        self.ring = KeyRing([])
        self.store: StoreFollower | None = None
        self._kinds = kinds
        self._configured: tuple[ApiKey, ...] = ()
        self._stored: Sequence[ApiKey] = ()  # the stored keys that the ring has now
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
        stored: Sequence[ApiKey] = () if store is None else store.keys

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
            self._stored = () if store is None else store.keys
            changed = self._stored is not stored
            ring.replace(ring.merged(self._stored, configured) if changed else merged)
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
        while store is self.store and store.keys is not self._stored:
            stored, configured = store.keys, self._configured
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
        self, store: StoreFollower, configured: Sequence[ApiKey], stored: Sequence[ApiKey]
    ) -> tuple[dict[bytes, ApiKey], list[SettingError]]:
        """Return all keys by digest, and an error for each configured key that is also stored."""
        conflicts = key_conflicts(configured, stored, store.location.name)
        return self.ring.merged(stored, configured), list(conflicts)


async def _open(setting: Path | SecretStr, kinds: Kinds) -> StoreFollower:
    try:
        store = StoreFollower(locate_store(setting, kinds))
        await store.in_thread(store.read)
    except KeyStoreError as error:
        raise StartError(f"auth.store: {error}") from None
    return store


async def _close(store: StoreFollower, times: Mapping[str, float]) -> None:
    """Write ``times`` as the last use of keys, and close the store."""
    try:
        await asyncio.wait_for(store.in_thread(store.close, times), _STOP_TIMEOUT)
    except TimeoutError:
        text = "%s: the key store does not respond; the last use of keys is not written"
        _log.warning(text, store.location.name)


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` as a task, and cancel the task at the end of the context."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
