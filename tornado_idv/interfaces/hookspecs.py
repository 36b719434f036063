"""The hooks that plugins implement, and the marker of implementations, `hookimpl`."""

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
    """Classes that a plugin provides, each by the name that a configuration selects it by.

    Each is a class, or where to import it from when it is used: ``"package.module:Class"``.
    """

    backends: Classes[Backend[Any]] = field(default_factory=dict)
    """By ``kind`` in ``backends``."""
    key_stores: Classes[Any] = field(default_factory=dict)
    """By the scheme of the URL in ``auth.store``: each a `KeyStoreLocation`, which takes the URL
    in a `pydantic.SecretStr`."""
    shared_caches: Classes[SharedCache[Any]] = field(default_factory=dict)
    """By ``shared_cache.kind``."""


@hookspec
def idv_kinds() -> Kinds:  # type: ignore[empty-body]
    """Return the kinds of backend, key store and shared cache of this plugin."""


@hookspec
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:  # type: ignore[empty-body]
    """Return the commands that this plugin adds to ``tornado-idv``, built with ``tools``."""


@hookspec
def idv_identify(query: Query, deadline: float) -> Coroutine[Any, Any, Answer | None]:  # type: ignore[empty-body]
    """Look a user up; each lookup that the cache does not answer is dispatched by this hook.

    A configured backend implements it by its guard. A plugin's implementation is ``async def``,
    and is awaited after all of them, if none found the user. It returns the found `Answer`,
    ``None`` for "not known here" (or an `Answer` without a user, to limit for how long that is
    cached), by ``deadline`` (seconds of the event loop's clock), and raises `Unavailable` or
    `Broken` if that cannot be determined.
    """


@hookspec
def idv_lookup_finished(query: Query, outcome: Answer | LookupFailed, cached: bool) -> None:  # noqa: FBT001
    """Called once for every lookup past the cache, and for every answer that is ``cached``.

    Callers with one query at one time share a lookup. It is called after they got their answers:
    of a lookup that failed they may have got a stale one. A failure that is remembered for
    ``cache.failure_memo`` is no lookup. An observer that raises is logged, and never fails a
    lookup.
    """
