"""The hooks that plugins implement, and the marker of implementations, `hookimpl`."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import pluggy

if TYPE_CHECKING:
    from tornado_idv.interfaces.backend import Backend
    from tornado_idv.interfaces.commands import CommandTools
    from tornado_idv.interfaces.shared import SharedCache, SharedLimits
    from tornado_idv.model import Answer, Query

PROJECT = "tornado_idv"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def idv_backend_kinds() -> Mapping[str, type[Backend[Any]] | str]:  # type: ignore[empty-body]
    """Return the backend classes of this plugin, by the name that ``kind:`` selects.

    Each is a class, or where to import it from when it is used: ``"package.module:Class"``.
    """


@hookspec
def idv_key_stores() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Return the places for a key store that this plugin offers, by the scheme of their URLs.

    Each is where to import a `KeyStoreLocation` from, which takes the URL in a
    `pydantic.SecretStr`: ``"package.module:Class"``.
    """


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
def idv_shared_cache() -> Mapping[str, type[SharedCache[Any]] | str]:  # type: ignore[empty-body]
    """Return the classes of shared caches of this plugin, by their name in ``shared_cache.kind``.

    As with ``idv_backend_kinds``, each is a class, or where to import it from.
    """


@hookspec
def idv_shared_limits() -> Mapping[str, type[SharedLimits[Any]] | str]:  # type: ignore[empty-body]
    """Return the classes of shared limits of this plugin, by their name in ``shared_limits.kind``.

    As with ``idv_backend_kinds``, each is a class, or where to import it from.
    """


@hookspec
def idv_lookup_finished(query: Query, answer: Answer) -> None:
    """Called after every lookup that has an answer, also from the cache.

    An observer that raises is logged, and never fails a lookup.
    """
