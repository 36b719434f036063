"""The part of the service that runs the shadows. A reload keeps unchanged shadows open."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pluggy

from tornado_idv.admin.report import PartReport
from tornado_idv.config.settings import Settings
from tornado_idv.features.shadow.shadow import Shadow
from tornado_idv.features.shadow.state import ShadowState, scope_of_users
from tornado_idv.interfaces.backend import BreakerOptions
from tornado_idv.lookup.canary import Canary, keep_checking
from tornado_idv.lookup.chain import Chain
from tornado_idv.lookup.circuit_breaker import CircuitBreaker
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.lookup.source_identity import identity_of
from tornado_idv.registry import build_backend, installed_kinds
from tornado_idv.service.directories import of_users
from tornado_idv.service.part import Commit, Part, Running, background

_NEVER_OPEN = BreakerOptions(failures=10**9)
"""Options of a circuit breaker that never opens. Comparisons use it for lookups in the source.

Lookups of some users may always fail. An open breaker would prevent all other comparisons.
The source needs no breaker as protection, because the rate of comparisons is limited.
"""


class ShadowsPart(Part):
    """The part that compares the current directory with the shadows of the current settings."""

    name = "shadows"
    _directory: Directory

    def __init__(self, running: Running) -> None:
        self.shadows: Sequence[Shadow] = ()
        self._manager, self._counters = running.manager, running.counters
        self._kinds = installed_kinds(running.manager)
        self._settings: Settings | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def prepare(self, settings: Settings, directory: Directory) -> Commit:
        """Create the shadows of these settings. The commit starts them for ``directory``."""
        before, identifiers = self._settings, settings.make_identifiers()
        keeps = before is not None and of_users(before) == of_users(settings)
        in_use = {each.name: each for each in self.shadows} if keeps else {}
        shadows = []
        for options in settings.shadows:
            shadow, identity = in_use.get(options.name), identity_of(options)
            # Equal options may select another source after a change of a secret's file.
            if shadow is None or (shadow.options, shadow.identity) != (options, identity):
                build = partial(build_backend, self._kinds, options)
                path = options.shadow.state if options.shadow else None
                state = ShadowState(path, options.name) if path else None
                shadow = Shadow(options, build, identifiers, self._counters, state)
            shadows.append(shadow)

        def commit() -> None:
            if before is not None and self._directory is not directory:
                self._directory.observe((), ())
                for each in self.shadows:
                    each.cancel()
            self._settings, self._directory = settings, directory
            self._close_others(shadows)
            for each in shadows:
                if each.state is not None:
                    backends = *settings.served, each.options
                    each.state.follow(scope_of_users(backends, *of_users(settings)))
                each.start()
            compare(directory, shadows, self._manager)

        return commit

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look up the canaries of the shadows in the background. At the end, close all shadows."""
        try:
            async with background(keep_checking(self._canaries)):
                yield
        finally:
            self._directory.observe((), ())
            self._close_others((), discard=False)
            await asyncio.gather(*self._closing)

    def report(self) -> PartReport | None:
        """Return the state of each shadow, or ``None`` without shadows."""
        sources = [each.report() for each in self.shadows]
        return PartReport(sources=sources) if sources else None

    def _canaries(self) -> list[Canary]:
        guards = (each.guard for each in self.shadows if each.guard)
        return [canary for each in guards for canary in each.canaries.values()]

    def _close_others(self, shadows: Sequence[Shadow], *, discard: bool = True) -> None:
        """Make ``shadows`` the current shadows, and close all others.

        With ``discard``, delete the comparisons of shadows without their ``state`` in the settings.
        """
        files = {(each.name, each.settings.state) for each in shadows}
        for each in set(self.shadows) - set(shadows):
            # From now on, `users import` cannot drop the comparisons of a former shadow.
            removed = discard and (each.name, each.settings.state) not in files
            closing = asyncio.create_task(each.close(discard=removed))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self.shadows = shadows


def announce(settings: Settings, _service: object) -> Iterator[str]:
    """Yield a line with the names of the shadows, or none without shadows."""
    if settings.shadows:
        yield f"Shadows: {', '.join(f'{each.name} ({each.kind})' for each in settings.shadows)}"


def compare(directory: Directory, shadows: Sequence[Shadow], manager: pluggy.PluginManager) -> None:
    """From now on, compare a sample of the lookups in ``directory`` with ``shadows``."""
    if shadows:
        # Comparisons have separate guards. They must not use up the concurrency limits of client
        # lookups, or open their circuit breakers.
        accepts = shadows[0].identifiers.accepts
        guards = [Guard(each.backend, accepts, listens=False) for each in directory.guards]
        for guard in guards:
            guard.breaker = CircuitBreaker(_NEVER_OPEN)
        source = Chain(manager, guards, directory.cache, lambda _: b"", directory.timeout)
        for each in shadows:
            each.source = source
    hits = [each.offer for each in shadows if each.settings.hits]
    directory.observe([each.offer for each in shadows], hits)
