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
    """A purge of the answers of some backends, of some users, or, without both, of everything.

    Each also purges every "not found".
    """

    backends: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()


class SharedResult(NamedTuple):
    """The stored answer to a query or ``None``, and the current generation.

    The generation changes with each purge. An answer stored with an earlier generation is never
    returned if the purge names it. Only the cache that returned a generation can interpret it.
    """

    generation: str
    answer: SharedAnswer | None = None


OptionsT = TypeVar("OptionsT", bound=SharedCacheOptions)


class SharedCache(ABC, Generic[OptionsT]):
    """A shared cache; all methods run on the event loop.

    Exceptions of `get`, `put` and `purge` are logged and count for a circuit breaker: they never
    fail a lookup. The methods need not bound their time. ``scope`` keeps the answers of different
    configurations apart.
    """

    options_type: ClassVar[type[SharedCacheOptions]] = SharedCacheOptions
    """The model of this kind's options."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self._on_purge: Callable[[Purge], None] | None = None

    async def open(self) -> None:
        """Prepare for lookups. It must not fail because the cache cannot be reached now."""

    @abstractmethod
    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return the stored answer to the query; it must be authentic."""

    @abstractmethod
    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer with the generation returned by `get` before its lookup."""

    @abstractmethod
    async def purge(self, purge: Purge) -> None:
        """Begin a new generation, and make every other process call `purged`.

        After an exception, it is called again with this purge, or with a larger one.
        """

    async def close(self) -> None:
        """Release the resources of `open`."""

    def on_purge(self, listener: Callable[[Purge], None]) -> None:
        """Set the listener of `purged`."""
        self._on_purge = listener

    def purged(self, purge: Purge) -> None:
        """Purge the answers in the cache of this process."""
        if self._on_purge is not None:
            self._on_purge(purge)


AnySharedCache = SharedCache[Any]
