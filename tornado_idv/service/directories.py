"""The directory in force, and those before it whose last lookups are still running."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pluggy

from tornado_idv.config.settings import Settings
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import BackendCall
from tornado_idv.lookup.shared_answers import SharedAnswers
from tornado_idv.lookup.shared_tier import SharedTier
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import (
    backend_kinds,
    build_backends,
    close_backend,
    open_backend,
    open_backends,
)
from tornado_idv.service.prepared import Prepared
from tornado_idv.web.json_body import encode_user

_OF_NEGATIVE = {"negative_ttl", "max_negative_entries", "failure_memo"}
"""Settings of the cache that do not matter to found answers."""


@asynccontextmanager
async def open_directory(
    settings: Settings,
    manager: pluggy.PluginManager,
    on_backend_result: Callable[[BackendCall], None] | None = None,
) -> AsyncIterator[Directory]:
    """Open the configured backends and yield a directory of them.

    ``on_backend_result`` is called with each call of a backend.
    Raises `StartError` if one cannot be opened.
    """
    backends = build_backends(backend_kinds(manager), settings.backends)
    directory = _make_directory(
        settings, manager, backends, Counters(), on_backend_result=on_backend_result
    )
    async with open_backends(backends):
        yield directory


@asynccontextmanager
async def open_directories(
    settings: Settings, manager: pluggy.PluginManager, counters: Counters
) -> AsyncIterator[Directories]:
    """Yield the directory of these settings in force; raises `StartError`."""
    async with _open_shared_tier(settings, manager, counters) as shared:
        directories = Directories(manager, counters, shared)
        (await directories.prepare(settings))[1].commit()
        try:
            yield directories
        finally:
            await directories.close()


@asynccontextmanager
async def _open_shared_tier(
    settings: Settings, manager: pluggy.PluginManager, counters: Counters
) -> AsyncIterator[SharedTier | None]:
    """Open the shared cache, if one is configured, for as long as the process runs."""
    options = settings.shared_cache
    if options is None:
        yield None
        return
    cache = backend_kinds(manager).shared_caches[options.kind](options)
    await cache.open()
    tier = SharedTier(cache, counters)
    try:
        yield tier
    finally:
        await tier.close()


class Directories:
    """Puts directories in force; backends with equal options are not opened again.

    ``current`` is the directory in force, once there is one.
    """

    current: Directory

    def __init__(
        self,
        manager: pluggy.PluginManager,
        counters: Counters,
        shared: SharedTier | None = None,
    ) -> None:
        self.shared = shared
        self._manager = manager
        self._counters = counters
        self._settings: Settings | None = None
        self._leaving: dict[Directory, asyncio.Task[None]] = {}
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def prepare(self, settings: Settings) -> tuple[Directory, Prepared]:
        """Return a directory of these settings, and its change from the one in force.

        Opens the backends that are not open yet; raises `StartError` if one cannot be opened.
        """
        before, opened, kept = self._settings, list[AnyBackend](), list[str]()

        async def abort() -> None:
            for backend in reversed(opened):
                await close_backend(backend)

        if before is not None and _of_lookups(before) == _of_lookups(settings):
            directory = self.current
        else:
            by_name = self._unchanged(settings)
            new = [each for each in settings.backends if each.name not in by_name]
            async with AsyncExitStack() as undo:
                undo.push_async_callback(abort)
                for backend in build_backends(backend_kinds(self._manager), new):
                    await open_backend(backend)
                    opened.append(backend)
                    by_name[backend.name] = backend
                directory = _make_directory(
                    settings,
                    self._manager,
                    [by_name[each.name] for each in settings.backends],
                    self._counters,
                    on_backend_result=partial(_count, self._counters),
                    previous=None if before is None else self.current,
                    shared=self.shared,
                )
                undo.pop_all()
            kept = [] if before is None else _with_same_answers(before, settings)
        return directory, Prepared(partial(self._replace, directory, settings, opened, kept), abort)

    def _replace(
        self,
        after: Directory,
        settings: Settings,
        opened: Sequence[AnyBackend],
        kept: Sequence[str],
    ) -> None:
        """Put a directory in force; found answers of the backends ``kept`` stay in the cache.

        Backends that are in use no more are closed when the lookups that run now have ended.
        """
        before, self._settings = self._settings, settings
        for backend in opened:
            self._counters.backends[backend.name].failing_since = None
        if before is None:
            self.current = after
        elif after is not self.current:
            previous, self.current = self.current, after
            after.replace(previous, kept)
            in_use = {guard.backend for guard in after.guards}
            removed = [each.backend for each in previous.guards if each.backend not in in_use]
            # The shared cache may take 1 s more; what ignores its timeout is not waited for.
            max_wait = before.server.request_timeout + 2
            # The task begins later, and then waits for this directory too.
            self._leaving[previous] = asyncio.create_task(self._leave(previous, removed, max_wait))

    async def close(self) -> None:
        """Close all backends, without waiting for lookups."""
        self._closing.set_result(None)
        await asyncio.gather(*self._leaving.values())
        self.current.stop_refreshing()
        for guard in reversed(self.current.guards):
            await close_backend(guard.backend)

    def _unchanged(self, settings: Settings) -> dict[str, AnyBackend]:
        """Return the open backends that these settings have with equal options, by name."""
        if self._settings is None:
            return {}
        backends = {guard.name: guard.backend for guard in self.current.guards}
        return {
            each.name: backends[each.name]
            for each in settings.backends
            if each.name in backends and backends[each.name].options == each
        }

    async def _leave(
        self, directory: Directory, removed: Sequence[AnyBackend], max_wait: float
    ) -> None:
        # Directories before this one may use its backends, too.
        ended = asyncio.gather(*(each.join() for each in self._leaving))
        ends: list[asyncio.Future[Any]] = [ended, self._closing]
        await asyncio.wait(ends, timeout=max_wait, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        for backend in reversed(removed):
            await close_backend(backend)
            backend.on_change(
                lambda *_: None
            )  # it refers to the directory, which refers to the backend
        directory.cache.apply(Purge())
        del self._leaving[directory]


def _make_directory(
    settings: Settings,
    manager: pluggy.PluginManager,
    backends: Sequence[AnyBackend],
    counters: Counters,
    *,
    on_backend_result: Callable[[BackendCall], None] | None,
    previous: Directory | None = None,
    shared: SharedTier | None = None,
) -> Directory:
    identifiers = settings.make_identifiers()
    cache = AnswerCache(settings.cache, counters=counters)
    encode = partial(encode_user, identifiers=identifiers)
    answers = (
        None
        if shared is None
        else SharedAnswers(
            shared,
            _scope(settings),
            cache,
            [each.name for each in backends],
            encode=encode,
            accepts=identifiers.accepts,
        )
    )
    return Directory(
        manager,
        backends,
        cache,
        encode,
        accepts=identifiers.accepts,
        timeout=settings.server.request_timeout,
        on_backend_result=on_backend_result,
        previous=previous,
        shared=answers,
    )


def _scope(settings: Settings) -> str:
    """Return a digest of the settings that decide which user answers a query, and for how long.

    It does not depend on secrets.
    """
    parts = [settings.identifiers, settings.cache, *settings.backends]
    text = "\n".join(part.model_dump_json() for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def _count(counters: Counters, call: BackendCall) -> None:
    counters.count_backend_call(call.backend, call.result, call.outcome, call.seconds)


def _of_lookups(settings: Settings) -> tuple[object, ...]:
    """Return the settings that a directory depends on."""
    timeout = settings.server.request_timeout
    return *_of_users(settings), settings.backends, settings.cache, timeout


def _of_users(settings: Settings) -> tuple[object, ...]:
    """Return the settings that decide which users are valid, and how they are rendered."""
    return settings.profile_sites, settings.identifiers


def _with_same_answers(before: Settings, after: Settings) -> list[str]:
    """Return the backends whose found users are certainly the same: no earlier one has changed."""
    limits = [each.cache.model_dump(exclude=_OF_NEGATIVE) for each in (before, after)]
    if limits[0] != limits[1] or _of_users(before) != _of_users(after):
        return []
    names: list[str] = []
    for old, new in zip(before.backends, after.backends, strict=False):
        if old != new:
            break
        names.append(new.name)
    return names
