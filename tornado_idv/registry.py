"""Functions that load plugins, collect their kinds, and create, open and close backends."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from tornado_idv.errors import DegradedStartError, IdvError, StartError, format_traceback
from tornado_idv.interfaces import hookspecs
from tornado_idv.interfaces.hookspecs import Kinds

if TYPE_CHECKING:
    from tornado_idv.interfaces.backend import AnyBackend, BackendOptions

T = TypeVar("T")
_log = logging.getLogger(__name__)


def plugin_manager(
    *, entry_points: bool | str = True, plugins: Iterable[object] = ()
) -> pluggy.PluginManager:
    """Return a plugin manager with the installed plugins and ``plugins``.

    Installed plugins are found by the entry point group ``tornado_idv``, unless ``entry_points`` is
    false. It may also be the name of one. Raises `StartError` if a plugin cannot be loaded,
    implements an unknown hook, or implements no hook.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        for plugin in plugins:
            manager.register(plugin)
        for entry_point in metadata.entry_points(group=hookspecs.PROJECT):
            if entry_points in (True, entry_point.name):
                _load(manager, entry_point)
        manager.check_pending()
        _check_hooks_of_lookups(manager)
    except Exception as error:
        raise StartError(f"a plugin cannot be loaded: {error}") from error
    return manager


def _load(manager: pluggy.PluginManager, entry_point: metadata.EntryPoint) -> None:
    """Load an installed plugin. Raises `ValueError` for an error at import or a missing hook."""
    package = entry_point.dist.name if entry_point.dist else "unknown package"
    plugin = f'{package}: entry point {entry_point.name} = "{entry_point.value}"'
    if manager.has_plugin(entry_point.name):
        raise ValueError(f"{plugin}: another plugin has an entry point of this name; rename it")
    try:
        loaded = entry_point.load()
        manager.register(loaded, name=entry_point.name)
    except SystemExit:
        raise ValueError(f"{plugin}: it ended the process (SystemExit)") from None
    except Exception as error:
        raise ValueError(f"{plugin}: {error}") from error
    if not manager.get_hookcallers(loaded):
        raise ValueError(f"{plugin}: it has no hook; decorate its hooks with @hookimpl")


def _check_hooks_of_lookups(manager: pluggy.PluginManager) -> None:
    """Raise `TypeError` for a lookup hook that is a wrapper or the wrong kind of function."""
    hooks = manager.hook
    for hook, is_async in ((hooks.idv_identify, True), (hooks.idv_lookup_finished, False)):
        for each in hook.get_hookimpls():
            name = f"{each.plugin_name}: {hook.name}"
            if each.wrapper or each.hookwrapper:
                raise TypeError(f"{name} must not be a wrapper")
            if inspect.iscoroutinefunction(each.function) != is_async:
                kind = "a coroutine function (async def)" if is_async else "a plain function"
                raise TypeError(f"{name} must be {kind}")


def installed_kinds(manager: pluggy.PluginManager) -> Kinds:
    """Return the kinds of all plugins. Raises `StartError` if two kinds have the same name."""
    found: dict[str, dict[str, Any]] = {each.name: {} for each in fields(Kinds)}
    try:
        all_offered = manager.hook.idv_kinds()
    except Exception as error:
        cause = str(error) if isinstance(error, ImportError) else _cause(error)
        raise StartError(f"a plugin cannot be loaded: {cause}") from error
    for offered in reversed(all_offered):  # pluggy calls the last plugin first
        for what, classes in found.items():
            more = getattr(offered, what, None)
            if not (
                isinstance(more, Mapping)
                and all(isinstance(each, type | str) for each in more.values())
            ):
                text = "idv_kinds must return Kinds, with a mapping from names to classes in"
                raise StartError(f"a plugin cannot be loaded: {text} {what}")
            for name in more.keys() & classes.keys():
                first, second = (
                    each.partition(":")[0] if isinstance(each, str) else each.__module__
                    for each in (classes[name], more[name])
                )
                raise StartError(
                    f'two plugins offer the kind "{name}" ({what}): {first} and {second}; '
                    "uninstall one of them"
                )
            classes.update(more)
    return Kinds(**found)


def load_class(offered: type[T] | str) -> type[T]:
    """Return a class of a plugin. If ``offered`` is "package.module:Class", import it.

    Unused classes are not imported, because this would double the time to start. Raises
    `StartError`.
    """
    if not isinstance(offered, str):
        return offered
    try:
        loaded: type[T] = resolve_name(offered)
    except (ImportError, AttributeError, ValueError) as error:
        raise StartError(f"a plugin cannot be loaded: {error}") from error
    return loaded


def build_backend(kinds: Kinds, options: BackendOptions) -> AnyBackend:
    """Return a backend with these options. Raises `StartError` if it cannot be created."""
    kind = load_class(kinds.backends[options.kind])
    try:
        backend = kind(options)
    except IdvError:
        raise
    except Exception as error:  # noqa: BLE001 a plugin may raise anything
        raise StartError(f"backend {options.name} cannot be created: {_cause(error)}") from None
    if not hasattr(backend, "options"):
        text = f"the __init__ of {kind.__name__} must call super().__init__(options)"
        raise StartError(f"backend {options.name} cannot be created: {text}")
    return backend


@asynccontextmanager
async def opened_backend(backend: AnyBackend) -> AsyncIterator[AnyBackend]:
    """Open a backend as `open_backend` does, and close it at the end of the context."""
    await open_backend(backend)
    try:
        yield backend
    finally:
        await close_backend(backend)


async def open_backend(backend: AnyBackend, *, may_be_degraded: bool = False) -> None:
    """Open a backend, and warn about kinds of query that its canaries do not protect.

    Raises `IdvError`; an unexpected exception is raised as `StartError`. With ``may_be_degraded``,
    a `DegradedStartError` is only logged, and the backend stays open.
    """
    try:
        await backend.open()
    except DegradedStartError as error:
        if not may_be_degraded:
            await close_backend(backend)
            raise
        _log.error("%s; lookups fail until this is repaired; no restart is needed", error)
    except IdvError:
        raise
    except Exception as error:  # noqa: BLE001 a plugin may raise anything
        _log.debug("backend %s failed to open:\n%s", backend.name, format_traceback(error))
        raise StartError(f"backend {backend.name} failed to open: {_cause(error)}") from None
    canaries = backend.options.canaries
    # A member of a canary protects the query whose first field has the same name.
    for member in sorted(kind.__struct_fields__[0] for kind in backend.serves) if canaries else ():
        if not any(getattr(each, member) for each in canaries):
            text = 'backend %s: its canary has no %s, so "not found" by %s is not protected'
            _log.warning(text, backend.name, member, member)


def _cause(error: Exception) -> str:
    """Return a description of an exception of a plugin.

    The message is omitted, because it may contain a secret. If the call itself has failed, such as
    for wrong arguments, the message is returned, because it comes from Python.
    """
    *_, where = traceback.extract_tb(error.__traceback__)
    if where.filename == __file__:
        return str(error)
    return f"{type(error).__name__} in {where.filename}, line {where.lineno}"


async def close_backend(backend: AnyBackend) -> None:
    """Close a backend. Errors are logged."""
    try:
        await backend.close()
    except Exception as error:  # noqa: BLE001 the others must still be closed
        _log.error("backend %s failed to close:\n%s", backend.name, format_traceback(error))
