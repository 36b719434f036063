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
    """Look a user up; implemented by each configured backend, in their order.

    Returns an unstarted coroutine, or ``None`` to be skipped for this kind of query. Awaited,
    the coroutine returns the found `Answer`, or ``None`` for "not known here" (or an `Answer`
    without a user, to limit for how long that is cached), by ``deadline`` (seconds of the event
    loop's clock), and raises `Unavailable` or `Broken` if that cannot be determined. The
    coroutines are awaited one by one up to the first that found the user; the rest are closed.
    """


@hookspec
def idv_lookup_finished(query: Query, answer: Answer) -> None:
    """Called after every lookup that has an answer, also from the cache.

    An observer that raises is logged, and never fails a lookup.
    """


def implementations(hook: pluggy.HookCaller, *arguments: str) -> list[Callable[..., Any]]:
    """The functions that implement a hook, in pluggy's order, to be called with ``arguments``.

    For the hooks of a lookup: a call by way of pluggy takes a fifteenth of it.
    """
    return [_called_with(arguments, each) for each in reversed(hook.get_hookimpls())]


def _called_with(arguments: tuple[str, ...], one: pluggy.HookImpl) -> Callable[..., Any]:
    """An implementation takes its arguments by name: some of the hook's, in any order."""
    if one.argnames == arguments:
        return one.function
    places = [arguments.index(name) for name in one.argnames]
    return lambda *given: one.function(*[given[place] for place in places])
