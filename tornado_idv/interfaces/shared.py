"""The interface of shared caches. A shared cache is a second cache tier for several services."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import Field

from tornado_idv.model import Query, SharedAnswer
from tornado_idv.options import Duration, Options


class SharedCacheOptions(Options):
    """The common options of shared caches. Each kind adds its own options."""

    kind: str
    """The kind of shared cache, by its name in the plugin."""
    timeout: Annotated[Duration, Field(gt=0, le=1)] = 0.02
    """The time to wait for the shared cache before the backends are queried, at most 1s."""


class Purge(NamedTuple):
    """A purge of the answers of some backends, or about some users.

    Without backends and users, it purges all answers. Every purge also removes every "not found".
    """

    backends: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()


class SharedResult(NamedTuple):
    """The stored answer to a query or ``None``, and the current generation of the cache.

    Each purge begins a generation. A purged answer is never returned, even if it is stored later
    with an earlier generation. The format of a generation is private to each kind of cache.
    """

    generation: str
    answer: SharedAnswer | None = None


OptionsT = TypeVar("OptionsT", bound=SharedCacheOptions)


class SharedCache(ABC, Generic[OptionsT]):
    """A shared cache. All methods run on the event loop.

    Exceptions of `get`, `put` and `purge` are logged, and count as failures for a circuit breaker.
    They never fail a lookup. The methods need no timeout, because their caller has one. The
    argument ``scope`` separates the answers of different configurations.
    """

    options_type: ClassVar[type[SharedCacheOptions]] = SharedCacheOptions
    """The model of the options of this kind."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self._on_purge: Callable[[Purge], None] = lambda _: None

    async def open(self) -> None:
        """Prepare for lookups. If the cache cannot be reached now, this method must not fail."""

    @abstractmethod
    async def get(self, scope: str, query: Query) -> SharedResult:
        """Return the stored answer to the query. The answer must be authenticated."""

    @abstractmethod
    async def put(self, scope: str, query: Query, result: SharedResult) -> None:
        """Store an answer with the generation that `get` returned before the lookup."""

    @abstractmethod
    async def purge(self, purge: Purge) -> None:
        """Begin a new generation, and make every other process call `purged`.

        After an exception, the service calls this method again with the same or a larger purge.
        """

    async def close(self) -> None:
        """Release the resources of `open`."""

    def on_purge(self, listener: Callable[[Purge], None]) -> None:
        """Set the listener: the function that `purged` calls with its argument."""
        self._on_purge = listener

    def purged(self, purge: Purge) -> None:
        """Purge answers from the cache of this process after a purge by another process."""
        self._on_purge(purge)


AnySharedCache = SharedCache[Any]
