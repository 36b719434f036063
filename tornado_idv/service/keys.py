"""The keys of a running service: those of `config.yaml`, and those of the key store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tornado_idv.errors import KeyStoreError, SettingError, StartError, format_traceback
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.latest_time import LatestTime
from tornado_idv.keys.locate import Offered, locate_store
from tornado_idv.keys.ring import KeyRing
from tornado_idv.service.daemon_thread import DaemonThread

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.25
_WRITE_INTERVAL = 60.0
"""Seconds between two writes of when keys were last used."""
_CLOCK_INTERVAL = 1.0
_STOP_TIMEOUT = 2.0
"""Seconds for which a stop waits for the store."""


class _Store:
    """A key store, and the thread in which it is read."""

    def __init__(self, follower: StoreFollower) -> None:
        self.follower = follower
        self.in_thread = DaemonThread("key store")

    @classmethod
    async def open(cls, setting: Path | SecretStr, offered: Offered) -> _Store:
        """Read the store for the first time; raises `StartError`."""
        try:
            store = cls(StoreFollower(locate_store(setting, offered)))
            await store.in_thread(store.follower.read)
        except KeyStoreError as error:
            raise StartError(f"auth.store: {error}") from None
        return store

    async def close(self, times: Mapping[str, float]) -> None:
        """Write when keys were last used, and close the store."""
        closing = self.in_thread(self.follower.close, times)
        try:
            await asyncio.wait_for(closing, _STOP_TIMEOUT)
        except TimeoutError:
            text = "%s: the key store does not respond; when keys were last used is not written"
            _log.warning(text, self.follower.location.name)


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of keys."""

    configured: tuple[ApiKey, ...]
    store: _Store | None

    @property
    def stored(self) -> Sequence[ApiKey]:
        """The keys in the store, as of its last good state."""
        return self.store.follower.keys if self.store is not None else ()

    def conflicts(self, stored: Sequence[ApiKey]) -> Iterator[SettingError]:
        """Yield an error for each key that is in both."""
        if self.store is not None:
            yield from key_conflicts(self.configured, stored, self.store.follower.location.name)


@dataclass(frozen=True, slots=True)
class PreparedKeys:
    """Keys that can be put in force; ``merged`` is the map of all of them with ``stored``."""

    source: _Source
    stored: Sequence[ApiKey]
    merged: dict[bytes, ApiKey]


class Keys:
    """All keys in ``ring``, and what follows the key store, if there is one.

    ``offered`` is what plugins open key stores with; ``latest`` is that of the `KeyRing`.
    """

    def __init__(self, offered: Offered, latest: LatestTime | None = None) -> None:
        self.ring = KeyRing([], latest=latest)
        self._offered = offered
        self._source = _Source((), None)
        self._stored: Sequence[ApiKey] = ()  # those of the store that are in the ring
        self._leaving: set[asyncio.Task[None]] = set()
        self._conflicts: frozenset[str] = frozenset()

    @property
    def store(self) -> StoreFollower | None:
        """The follower of the key store."""
        return self._source.store.follower if self._source.store is not None else None

    async def prepare(
        self, configured: Iterable[ApiKey], setting: Path | SecretStr | None
    ) -> PreparedKeys:
        """Return the configured keys and those of the store at ``setting`` for `replace`.

        Raises `StartError` if the store is another one than now and cannot be read, and
        `SettingError` for a key in both.
        """
        store = self._source.store
        if setting is None:
            store = None
        elif store is None or store.follower.location.setting != setting:
            store = await _Store.open(setting, self._offered)
        source = _Source(tuple(configured), store)
        stored = source.stored
        if store is None:
            return PreparedKeys(source, stored, self.ring.merged(stored, source.configured))
        merged, conflicts = await store.in_thread(self._merge, source, stored)
        prepared = PreparedKeys(source, stored, merged)
        for conflict in conflicts:
            await self.abort(prepared)
            raise conflict
        return prepared

    async def abort(self, prepared: PreparedKeys) -> None:
        """Close the store that was opened for these keys, if it is another one than now."""
        store = prepared.source.store
        if store is not None and store is not self._source.store:
            await store.close({})

    def replace(self, prepared: PreparedKeys) -> None:
        """Put these keys in force, at once."""
        source, before = prepared.source, self._source.store
        merged = prepared.merged
        if source.stored is not prepared.stored:  # the store has changed since
            merged = self.ring.merged(source.stored, source.configured)
        self.ring.replace(merged, source.configured)
        self._source, self._stored = source, source.stored
        if before is not None and before is not source.store:
            leaving = asyncio.create_task(before.close(self.ring.last_used_of_stored()))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def follow(self) -> None:
        """Make changes of the store effective, and write when keys were last used."""
        write_at = time.monotonic() + _WRITE_INTERVAL
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            store = self._source.store
            if store is None:
                continue
            try:
                await self._poll(store)
                if time.monotonic() >= write_at:
                    write_at = time.monotonic() + _WRITE_INTERVAL
                    times = self.ring.last_used_of_stored()
                    await store.in_thread(store.follower.write_last_used, times)
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                _log.error("following the key store failed:\n%s", format_traceback(error))

    async def close(self) -> None:
        """Write when keys were last used, and close the store."""
        if self._source.store is not None:
            await self._source.store.close(self.ring.last_used_of_stored())
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _poll(self, store: _Store) -> None:
        await store.in_thread(store.follower.poll)
        while (source := self._source).store is store and source.stored is not self._stored:
            stored = source.stored
            merged, errors = await store.in_thread(self._merge, source, stored)
            if source is self._source:  # otherwise the configured keys were replaced meanwhile
                self.ring.replace(merged)
                self._stored = stored
                self._log_conflicts(frozenset(map(str, errors)))

    def _merge(
        self, source: _Source, stored: Sequence[ApiKey]
    ) -> tuple[dict[bytes, ApiKey], list[SettingError]]:
        """Return the map of all keys, and conflicts; in a thread, since stores may be large."""
        merged = self.ring.merged(stored, source.configured)
        return merged, list(source.conflicts(stored))

    def _log_conflicts(self, conflicts: frozenset[str]) -> None:
        for text in sorted(conflicts - self._conflicts):
            _log.error("config.yaml: %s; until then, the one in the store is ignored", text)
        self._conflicts = conflicts


@asynccontextmanager
async def open_keys(
    configured: Sequence[ApiKey],
    setting: Path | SecretStr | None,
    offered: Offered,
    latest: LatestTime | None = None,
) -> AsyncIterator[Keys]:
    """Yield the configured keys and those of the store at ``setting``, which is followed.

    Raises `StartError` and `SettingError` as `Keys.prepare`.
    """
    keys = Keys(offered, latest)
    keys.replace(await keys.prepare(configured, setting))
    async with _background(_watch_clock(keys.ring)):
        try:
            async with _background(keys.follow()):
                yield keys
        finally:
            await keys.close()


def key_conflicts(
    configured: Sequence[ApiKey], stored: Iterable[ApiKey], name: str
) -> Iterator[SettingError]:
    """Yield an error for each configured key whose id or token the store ``name`` has, too."""
    own_ids, own_digests = {key.id for key in configured}, {key.digest for key in configured}
    both = [key for key in stored if key.id in own_ids or key.digest in own_digests]
    by_digest, ids = {key.digest: key.id for key in both}, {key.id for key in both}
    for i, key in enumerate(configured):
        if key.id in ids:
            text = f"the key store {name} has a key {key.id}, too; remove this one"
            yield SettingError(text, "auth", "keys", i, "id")
        elif key.digest in by_digest:
            text = (
                f"the key {by_digest[key.digest]} in the key store {name} has the token of "
                f"{key.id}; remove this one"
            )
            yield SettingError(text, "auth", "keys", i)


async def _watch_clock(ring: KeyRing) -> None:
    """Let the ring notice the time also while there are no requests."""
    while True:
        await asyncio.sleep(_CLOCK_INTERVAL)
        ring.notice_time()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
