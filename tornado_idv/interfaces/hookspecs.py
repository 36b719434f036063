"""The hooks of plugins, and `hookimpl`, the decorator for their implementations."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pluggy

if TYPE_CHECKING:
    from tornado_idv.errors import LookupFailed
    from tornado_idv.interfaces.backend import Backend
    from tornado_idv.interfaces.command_tools import CommandTools
    from tornado_idv.interfaces.shared import SharedCache
    from tornado_idv.model import Answer, Query

T = TypeVar("T")
Classes = Mapping[str, type[T] | str]
PROJECT = "tornado_idv"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Kinds:
    """Classes of a plugin, by their names in the configuration.

    A value is a class or its place, ``"package.module:Class"``, imported on first use.
    """

    backends: Classes[Backend[Any]] = field(default_factory=dict)
    """Backends by ``kind`` of an entry in ``backends``."""
    key_stores: Classes[Any] = field(default_factory=dict)
    """Subclasses of `KeyStoreLocation` by scheme of the URL in ``auth.store``, empty for a path.
    Their argument is the `Path`, or the URL in a `pydantic.SecretStr`."""
    shared_caches: Classes[SharedCache[Any]] = field(default_factory=dict)
    """Shared caches by ``shared_cache.kind``."""


@hookspec
def idv_kinds() -> Kinds:  # type: ignore[empty-body]
    """Return the kinds of backend, key store and shared cache of this plugin."""


@hookspec
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:  # type: ignore[empty-body]
    """Return the commands of this plugin for ``tornado-idv``, built with ``tools``."""


@hookspec
def idv_identify(query: Query, deadline: float) -> Coroutine[Any, Any, Answer | None]:  # type: ignore[empty-body]
    """Look a user up. The service calls this hook for each uncached lookup.

    The implementation is ``async def``. It is awaited after all backends, even with ``tryfirst``,
    and only if no backend found the user. Before ``deadline`` (seconds of the event loop's clock),
    it returns an `Answer` with the user, or ``None`` for "not known here". An `Answer` without a
    user also means "not known here", and can limit the time to live of this result. If the result
    cannot be determined, it raises `Unavailable` or `Broken`.
    """


@hookspec
def idv_lookup_finished(query: Query, outcome: Answer | LookupFailed, cached: bool) -> None:  # noqa: FBT001
    """Observe a finished lookup or, with ``cached``, an answer from the cache.

    Concurrent callers with the same query share one lookup. The hook is called once for all of
    them, after they have their answers. If the lookup failed, these answers may be stale. If
    ``cache.failure_memo`` repeats a failure without a lookup, the hook is not called. An exception
    raised by an implementation is logged, and does not affect the lookup.
    """
