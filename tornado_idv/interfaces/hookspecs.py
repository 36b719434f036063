"""The hooks of plugins, and the marker of implementations, `hookimpl`."""

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
    """Classes of a plugin, by the names that select them in the configuration.

    Each is a class, or the place of one, imported on first use: ``"package.module:Class"``.
    """

    backends: Classes[Backend[Any]] = field(default_factory=dict)
    """By ``kind`` in ``backends``."""
    key_stores: Classes[Any] = field(default_factory=dict)
    """By the scheme of the URL in ``auth.store``: each a `KeyStoreLocation`. Its argument is the
    URL, in a `pydantic.SecretStr`."""
    shared_caches: Classes[SharedCache[Any]] = field(default_factory=dict)
    """By ``shared_cache.kind``."""


@hookspec
def idv_kinds() -> Kinds:  # type: ignore[empty-body]
    """Return the kinds of backend, key store and shared cache of this plugin."""


@hookspec
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:  # type: ignore[empty-body]
    """Return the commands of this plugin for ``tornado-idv``, built with ``tools``."""


@hookspec
def idv_identify(query: Query, deadline: float) -> Coroutine[Any, Any, Answer | None]:  # type: ignore[empty-body]
    """Look a user up. This hook dispatches each lookup past the cache.

    A configured backend implements it by its guard. A plugin's implementation is ``async def``. It
    is awaited after all backends, even with ``tryfirst``, if none of them found the user. By
    ``deadline`` (seconds of the event loop's clock) it returns the found `Answer`, or ``None`` for
    "not known here". An `Answer` without a user means the same, and limits how long that is cached.
    It raises `Unavailable` or `Broken` if the result cannot be determined.
    """


@hookspec
def idv_lookup_finished(query: Query, outcome: Answer | LookupFailed, cached: bool) -> None:  # noqa: FBT001
    """Called once for every lookup past the cache, and for every ``cached`` answer.

    Concurrent callers with one query share a lookup. It is called after they got their answers;
    after a failed lookup these may have been stale. A failure that is repeated from
    ``cache.failure_memo`` is not a lookup. An exception of an observer is logged, and never fails a
    lookup.
    """
