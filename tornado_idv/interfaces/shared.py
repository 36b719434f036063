"""Shared state of several services: a second cache tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import Field

from tornado_idv.model import Query, SharedAnswer
from tornado_idv.options import Duration, Options


class SharedCacheOptions(Options):
    """The shared cache; a kind adds its own options."""

    kind: str
    """The kind of shared cache, as its plugin names it."""
    timeout: Annotated[Duration, Field(gt=0, le=1)] = 0.02
    """How long a lookup waits for the shared cache, at most 1s; then it goes on without."""


class Purge(NamedTuple):
    """A purge of the answers of backends, those of users, or without either everything.

    Each also purges every "not found".
    """

    backends: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()


class SharedResult(NamedTuple):
    """Stored answer to a query, if any, and the generation at that time.

    The generation changes with each purge: an answer that is stored with an earlier one is never
    returned if the purge names it. Only the cache that returned it knows what it means.
    """

    generation: str
    answer: SharedAnswer | None = None


OptionsT = TypeVar("OptionsT", bound=SharedCacheOptions)


class SharedCache(ABC, Generic[OptionsT]):
    """A shared cache; all methods run on the event loop.

    What `get`, `put` and `purge` raise is logged, and counts for a circuit breaker: it never
    fails a lookup. They need not bound their time. ``scope`` differs between configurations whose
    answers must not be mixed up.
    """

    options_type: ClassVar[type[SharedCacheOptions]] = SharedCacheOptions
    """The model of this kind's options."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self._on_purge: Callable[[Purge], None] | None = None

    async def open(self) -> None:
        """Make ready; a cache that cannot be reached now is no reason not to start."""

    @abstractmethod
    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return what is stored for the query; it must be authentic."""

    @abstractmethod
    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer, with the generation that `get` returned before it was looked up."""

    @abstractmethod
    async def purge(self, purge: Purge) -> None:
        """Begin a new generation, and have every other process call `purged`.

        If it raises it is called again: with the same object, or with another that names more.
        """

    async def close(self) -> None:
        """Give back what `open` took."""

    def on_purge(self, listener: Callable[[Purge], None]) -> None:
        """Set the function that `purged` calls."""
        self._on_purge = listener

    def purged(self, purge: Purge) -> None:
        """Purge the answers that this process has cached."""
        if self._on_purge is not None:
            self._on_purge(purge)


AnySharedCache = SharedCache[Any]
