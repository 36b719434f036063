"""The `Directory` for all lookups, and its replacement in a reload."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import takewhile
from typing import Any

import pluggy

from tornado_idv.config.settings import Settings
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.shared import Purge
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.canary import keep_checking
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import BackendCall
from tornado_idv.lookup.source_identity import identity_of
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import build_backend, close_backend, installed_kinds, open_backend
from tornado_idv.service.part import Part, Prepared, Running, background
from tornado_idv.web.json_body import encode_user


@asynccontextmanager
async def open_directory(
    settings: Settings, manager: pluggy.PluginManager
) -> AsyncIterator[Directory]:
    """Open the backends that answer lookups, and yield a directory of them.

    Raises `StartError` if a backend cannot be opened.
    """
    directories = Directories(manager, Counters())
    async with directories.opened(settings.model_copy(update={"backends": settings.served})):
        yield directories.current


@asynccontextmanager
async def open_directories(running: Running, parts: Sequence[Part]) -> "AsyncIterator[Directories]":
    """Open the parts and the first directory. Check the canaries regularly. Raises `StartError`."""
    settings = running.settings
    directories = Directories(running.manager, running.counters, parts)
    async with AsyncExitStack() as stack:
        for part in parts:
            await stack.enter_async_context(part.opened())
        await stack.enter_async_context(directories.opened(settings))
        for part in parts:
            (await part.prepare(settings, directories.current))()
            await stack.enter_async_context(part.running())
        checking = keep_checking(lambda: directories.current.canaries)
        await stack.enter_async_context(background(checking))
        yield directories


class Directories:
    """Replaces the directory in a reload.

    A backend stays open if its options and its source of users are unchanged. ``current`` is the
    directory in use, set by `opened`. ``counters`` count each call of a backend. Each of ``parts``
    may add a layer, such as a shared cache, between the cache and the backends.
    """

    current: Directory

    def __init__(
        self, manager: pluggy.PluginManager, counters: Counters, parts: Sequence[Part] = ()
    ) -> None:
        self._manager = manager
        self._kinds = installed_kinds(manager)
        self._counters = counters
        self.parts = parts
        self._settings: Settings | None = None
        self._sources: set[tuple[str, bytes]] = set()
        self._replaced: dict[Directory, asyncio.Task[None]] = {}
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncIterator[None]:
        """Open the first directory. On exit, close all backends, even if calls are running.

        Raises `StartError` if a backend cannot be opened.
        """
        (await self.prepare(settings))[1].commit()
        try:
            yield
        finally:
            self._closing.set_result(None)
            await asyncio.gather(*self._replaced.values())
            self.current.stop_refreshing()
            for task in filter(None, (each.task for each in self.current.canaries)):
                task.cancel()
            for guard in reversed(self.current.guards):
                await close_backend(guard.backend)

    async def prepare(self, settings: Settings) -> tuple[Directory, Prepared]:
        """Return the directory for these settings, and the `Prepared` change to it.

        Opens new backends. Raises `StartError` for a backend that cannot be opened.
        """
        # A secret in a file may select another source now, although the options are equal, and
        # again another one while backends open: the next reload then sees this change.
        sources = {(each.name, identity_of(each)) for each in settings.served}
        same_source = {name for name, _ in self._sources & sources}
        before = self._settings
        same = before is not None and _of_lookups(before) == _of_lookups(settings)
        if same and same_source.issuperset(each.name for each in settings.served):
            use = partial(self._use, settings, self.current, sources)
            return self.current, Prepared(use, AsyncExitStack().aclose)  # nothing to close
        previous = None if before is None else self.current
        in_use = {guard.name: guard.backend for guard in previous.guards} if previous else {}
        by_name = {
            each.name: in_use[each.name]
            for each in settings.served
            if each.name in same_source & in_use.keys() and in_use[each.name].options == each
        }
        new = [each for each in settings.served if each.name not in by_name]
        async with AsyncExitStack() as opened:
            for backend in [build_backend(self._kinds, each) for each in new]:
                await open_backend(backend, may_be_degraded=before is None)
                opened.push_async_callback(close_backend, backend)
                by_name[backend.name] = backend
            backends = [by_name[each.name] for each in settings.served]
            directory = await self._make(settings, backends, previous)
            abort = opened.pop_all().aclose

        def commit() -> None:
            for each in new:
                self._counters.backends[each.name].failing_since = None
            if before is not None and previous is not None:
                kept = takewhile(same_source.__contains__, _with_same_answers(before, settings))
                directory.replace(previous, [*kept])
                # The task starts when `_replaced` has this directory, so it waits for this, too.
                closing = self._close_replaced(previous, directory)
                self._replaced[previous] = asyncio.create_task(closing)
            self._use(settings, directory, sources)

        return directory, Prepared(commit, abort)

    def _use(
        self, settings: Settings, directory: Directory, sources: set[tuple[str, bytes]]
    ) -> None:
        self.current, self._settings, self._sources = directory, settings, sources

    async def _make(
        self, settings: Settings, backends: Sequence[AnyBackend], previous: Directory | None
    ) -> Directory:
        identifiers = settings.make_identifiers()
        cache = AnswerCache(settings.cache, counters=self._counters)
        layers = [await each.layer(settings, cache) for each in self.parts]
        return Directory(
            self._manager,
            backends,
            cache,
            partial(encode_user, identifiers=identifiers),
            accepts=identifiers.accepts,
            timeout=settings.server.request_timeout,
            on_backend_result=self._count,
            previous=previous,
            layers=[each for each in layers if each],
        )

    def _count(self, call: BackendCall) -> None:
        self._counters.count_backend_call(call.backend, call.result, call.outcome, call.seconds)

    async def _close_replaced(self, directory: Directory, after: Directory) -> None:
        """Wait for the end of running lookups, then close all backends not used by ``after``."""
        # Directories before this one may use its backends, too.
        ended = asyncio.gather(*(each.join() for each in self._replaced))
        ends: list[asyncio.Future[Any]] = [ended, self._closing]
        # The shared cache may take 1 s more. Calls beyond their timeout are not waited for.
        timeout = directory.timeout + 2
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        in_use = {guard.backend for guard in after.guards}
        for guard in reversed(directory.guards):
            if guard.backend not in in_use:
                await close_backend(guard.backend)
                guard.backend.on_change(lambda *_: None)  # the old one refers to the directory
        # `tune_gc` excludes the first directory of a process from collections: free its answers.
        directory.cache.apply(Purge())
        directory.cache.related.remove(directory.cache)
        del self._replaced[directory]


def _of_lookups(settings: Settings) -> tuple[object, ...]:
    """Return the settings that a directory depends on."""
    timeout = settings.server.request_timeout
    return *of_users(settings), settings.served, settings.cache.of_answers(), timeout


def scope_of(settings: Settings) -> bytes:
    """Return a digest of all settings that affect answers and their time to live."""
    # Some backends look users up by profile URL, so the sites affect answers.
    cache, sites = settings.cache.of_answers(), settings.profile_sites
    return identity_of(cache, settings.identifiers, settings.served, sites)


def of_users(settings: Settings) -> tuple[object, ...]:
    """Return the settings that define valid users, and the form of users in responses."""
    return settings.profile_sites, settings.identifiers


def _with_same_answers(before: Settings, after: Settings) -> list[str]:
    """Return the names of backends with valid cached users: all before the first changed one."""
    # These settings do not affect found users.
    others = dict.fromkeys(("negative_ttl", "max_negative_entries", "failure_memo"))
    limits = [each.cache.of_answers() | others for each in (before, after)]
    if limits[0] != limits[1] or of_users(before) != of_users(after):
        return []
    pairs = zip(before.served, after.served, strict=False)
    return [new.name for old, new in takewhile(lambda pair: pair[0] == pair[1], pairs)]
