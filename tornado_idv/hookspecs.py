"""The hooks that plugins implement, and the marker of implementations, `hookimpl`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import click
import pluggy

from tornado_idv.backend import Backend
from tornado_idv.commands import CommandTools
from tornado_idv.model import Answer, Query

PROJECT = "tornado_idv"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def idv_backend_kinds() -> Mapping[str, type[Backend[Any]]]:  # type: ignore[empty-body]
    """Return the backend classes of this plugin, by the name that ``kind:`` selects."""


@hookspec
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:  # type: ignore[empty-body]
    """Return the commands that this plugin adds to ``tornado-idv``, built with ``tools``."""


@hookspec
def idv_identify(query: Query, deadline: float) -> Coroutine[Any, Any, Answer | None]:  # type: ignore[empty-body]
    """Look a user up; each configured backend implements this, in the order of the file.

    Return an unstarted coroutine, or ``None`` to be skipped for this query. The coroutine
    returns an `Answer` with the user, or ``None`` for "not known here" (or an `Answer` without
    a user, to set for how long that is cached). It ends by ``deadline``, in seconds of the event
    loop's clock, and raises `Unavailable` or `Broken` if the result could not be determined.
    Coroutines are awaited one by one until one finds a user; the rest are closed unstarted.
    """


@hookspec
def idv_lookup_finished(query: Query, answer: Answer) -> None:
    """Called after every lookup with an answer, from a backend or from the cache.

    An exception is logged and does not fail the lookup.
    """


def implementations(hook: pluggy.HookCaller, *arguments: str) -> list[Callable[..., Any]]:
    """Return the functions that implement a hook, in pluggy's order; each takes ``arguments``.

    The hooks of a lookup are called this way, which saves some 2 to 5 µs per lookup compared
    with pluggy's `HookCaller` (CPython 3.11).
    """
    return [_with_arguments(arguments, each) for each in reversed(hook.get_hookimpls())]


def _with_arguments(arguments: tuple[str, ...], one: pluggy.HookImpl) -> Callable[..., Any]:
    """Adapt an implementation, which may take some of the arguments, in any order."""
    if one.argnames == arguments:
        return one.function
    indexes = [arguments.index(name) for name in one.argnames]
    return lambda *given: one.function(*[given[index] for index in indexes])
