"""The keys of a running service: those of `config.yaml`, and those of the key store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tornado_idv.errors import KeyStoreError, SettingError, StartError, format_traceback
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.follower import StoreFollower
from tornado_idv.keys.ring import KeyRing

_log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.25
_WRITE_INTERVAL = 60.0
"""Seconds between two writes of when keys were last used."""
_CLOCK_INTERVAL = 1.0
_STOP_TIMEOUT = 2.0
"""Seconds for which a stop waits for the store."""


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys, and what follows the key store, if there is one."""

    ring: KeyRing
    store: StoreFollower | None


@asynccontextmanager
async def open_keys(configured: Sequence[ApiKey], path: Path | None) -> AsyncIterator[Keys]:
    """Yield the configured keys and those of the store at ``path``, which is followed.

    Raises `StartError` if the store cannot be read, and `SettingError` for a key in both.
    """
    ring = KeyRing(configured)
    async with AsyncExitStack() as stack:
        store = None
        if path is not None:
            store = StoreFollower(path)
            await stack.enter_async_context(_following(store, ring, configured))
        await stack.enter_async_context(_background(_watch_clock(ring)))
        yield Keys(ring, store)


def key_conflicts(
    configured: Sequence[ApiKey], stored: Iterable[ApiKey], path: Path
) -> Iterator[SettingError]:
    """Yield an error for each configured key whose id or token the store at ``path`` has, too."""
    by_digest = {key.digest: key.id for key in stored}
    ids = frozenset(by_digest.values())
    for i, key in enumerate(configured):
        if key.id in ids:
            text = f"the key store {path} has a key {key.id}, too; remove this one"
            yield SettingError(text, "auth", "keys", i, "id")
        elif key.digest in by_digest:
            text = (
                f"the key {by_digest[key.digest]} in the key store {path} has the token of "
                f"{key.id}; remove this one"
            )
            yield SettingError(text, "auth", "keys", i)


@asynccontextmanager
async def _following(
    store: StoreFollower, ring: KeyRing, configured: Sequence[ApiKey]
) -> AsyncIterator[None]:
    """Add the keys of the store to the ring, and follow it in a thread."""
    in_thread = _InThread()
    try:
        stored = await in_thread(store.read) or []
    except KeyStoreError as error:
        raise StartError(f"auth.store: {error}") from None
    for conflict in key_conflicts(configured, stored, store.path):
        raise conflict
    ring.replace(ring.merged(stored))
    try:
        async with _background(_follow(_Following(store, ring, configured), in_thread)):
            yield
    finally:
        writing = in_thread(store.write_last_used, ring.last_used_of_stored())
        try:
            await asyncio.wait_for(writing, _STOP_TIMEOUT)
        except TimeoutError:
            text = "%s: the key store does not respond; when keys were last used is not written"
            _log.warning(text, store.path)


class _InThread:
    """Calls functions one at a time, in daemon threads.

    Neither the event loop nor the end of the process waits for a call that hangs.
    """

    def __init__(self) -> None:
        self._lock = Lock()

    def __call__(self, function: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # a caller that leaves does not cancel it

        def run() -> None:
            try:
                with self._lock:
                    done.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)

        Thread(target=run, name="key store", daemon=True).start()
        return asyncio.wrap_future(done)


class _Following:
    """One step of following the store, without the event loop."""

    def __init__(self, store: StoreFollower, ring: KeyRing, configured: Sequence[ApiKey]) -> None:
        self.store = store
        self.ring = ring
        self._configured = configured
        self._conflicts: frozenset[str] = frozenset()

    def poll(self) -> dict[bytes, ApiKey] | None:
        """Return the new map of all keys if the store has changed."""
        stored = self.store.poll()
        if stored is None:
            return None
        errors = key_conflicts(self._configured, stored, self.store.path)
        conflicts = frozenset(map(str, errors))
        for text in sorted(conflicts - self._conflicts):
            _log.error("config.yaml: %s; until then, the one in the store is ignored", text)
        self._conflicts = conflicts
        return self.ring.merged(stored)


async def _follow(following: _Following, in_thread: _InThread) -> None:
    """Make changes of the store effective, and write when keys were last used."""
    write_at = time.monotonic() + _WRITE_INTERVAL
    while True:
        await asyncio.sleep(_POLL_INTERVAL)
        try:
            keys = await in_thread(following.poll)
            if keys is not None:
                following.ring.replace(keys)
            if time.monotonic() >= write_at:
                write_at = time.monotonic() + _WRITE_INTERVAL
                times = following.ring.last_used_of_stored()
                await in_thread(following.store.write_last_used, times)
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            _log.error("following the key store failed:\n%s", format_traceback(error))


async def _watch_clock(ring: KeyRing) -> None:
    """Let the ring notice the time also while there are no requests."""
    while True:
        await asyncio.sleep(_CLOCK_INTERVAL)
        ring.now()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
