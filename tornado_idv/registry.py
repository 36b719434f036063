"""Plugins found, kinds collected, configured backends built, opened and closed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pluggy

from tornado_idv import hookspecs
from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.errors import StartError, trace

_log = logging.getLogger(__name__)


def plugin_manager(
    *, entry_points: bool = True, plugins: Iterable[object] = ()
) -> pluggy.PluginManager:
    """Builds a manager that knows our hooks, the installed plugins and ``plugins``.

    Installed plugins announce themselves by the entry point group ``tornado_idv``.
    Raises `StartError` if a plugin cannot be loaded or implements an unknown hook.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        for plugin in plugins:
            manager.register(plugin)
        if entry_points:
            manager.load_setuptools_entrypoints(hookspecs.PROJECT)
        manager.check_pending()
    except Exception as error:
        raise StartError(f"a plugin cannot be loaded: {error}") from error
    return manager


def backend_kinds(manager: pluggy.PluginManager) -> dict[str, type[AnyBackend]]:
    """Every kind that the plugins offer, by name; raises `StartError` if two offer one name."""
    kinds: dict[str, type[AnyBackend]] = {}
    for offered in reversed(manager.hook.idv_backend_kinds()):
        for kind, backend in offered.items():
            if kind in kinds:
                raise StartError(
                    f'two plugins offer the kind "{kind}": {kinds[kind].__module__} and '
                    f"{backend.__module__}; uninstall one of them"
                )
            kinds[kind] = backend
    return kinds


def build_backends(
    kinds: Mapping[str, type[AnyBackend]], options: Iterable[BackendOptions]
) -> list[AnyBackend]:
    """One backend for each entry of ``backends:``, in the order of the file."""
    return [kinds[each.kind](each) for each in options]


@asynccontextmanager
async def opened(backends: Sequence[AnyBackend]) -> AsyncIterator[Sequence[AnyBackend]]:
    """Opens the backends in order and closes them in reverse.

    When one fails to open, those opened before it are closed, and its error is raised.
    A backend that fails to close is logged, and the others are closed all the same.
    """
    async with AsyncExitStack() as stack:
        for backend in backends:
            await backend.open()
            stack.push_async_callback(_close, backend)
        yield backends


async def _close(backend: AnyBackend) -> None:
    try:
        await backend.close()
    except Exception as error:  # noqa: BLE001 the others are to be closed all the same
        _log.error("backend %s failed to close:\n%s", backend.name, trace(error))
