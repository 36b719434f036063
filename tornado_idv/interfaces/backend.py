"""The interface of backends, which plugins implement. A backend is a configured source of users."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from tornado_idv.errors import InvalidFormat
from tornado_idv.identifiers import Identifiers
from tornado_idv.interfaces.user_store import UserStore
from tornado_idv.model import BackendResult, ByCard, ByNickname, Query, Step, User
from tornado_idv.options import (
    ConfigPath,
    Duration,
    Options,
    Pattern,
    Percentage,
    RateLimit,
    WholeNumber,
)
from tornado_idv.units import Rate


class BreakerOptions(Options):
    """The circuit breaker of a backend."""

    failures: Annotated[WholeNumber, Field(ge=1)] = 5
    """The number of consecutive failures that opens the circuit."""
    open_for: Annotated[Duration, Field(gt=0)] = 5.0
    """The time for which the circuit first stays open, ± 20 %. Each failed probe doubles it."""
    open_max: Annotated[Duration, Field(gt=0)] = 60.0
    """The maximum time for which the circuit stays open, ± 20 %."""


class CanaryOptions(Options):
    """A canary: a user who must always be found.

    If this user is missing, "not found" is not trusted, because the source may have lost its users,
    or the right to read them. If ``plan`` or ``absent`` is set, a failed check makes "found"
    untrusted, too.
    """

    nickname: str | None = None
    """The nickname of this user, such as "@idv-canary", to protect lookups by nickname."""
    card_number: str | None = None
    """The card number of this user, to protect lookups by card number."""
    plan: Annotated[str, Field(min_length=1)] | None = None
    """The plan that this user must have."""
    absent: str | None = None
    """A disabled user who must not be found, as @nickname or the digits of a card."""
    max_age: Duration = 5.0
    """The time for which one lookup of the canary confirms answers, from the start of this lookup.

    After this time, the next answer that needs a confirmation causes a new lookup of the canary.
    With 0s, each of these answers causes one. For several canaries, the shortest time applies."""

    @field_validator("nickname", "card_number", "absent")
    @classmethod
    def _valid_query(cls, text: str, info: ValidationInfo) -> str:
        identifiers = (info.context or {}).get("identifiers") or Identifiers(())
        try:
            if info.field_name == "absent" and text.startswith("@"):
                return str(identifiers.parse_nickname(text[1:]).text)
            if info.field_name != "nickname":
                return str(identifiers.parse_card(text).card_number)
            return str(identifiers.parse_nickname(text.removeprefix("@")).nickname)
        except InvalidFormat as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _names_a_user(self) -> Self:
        if self.nickname is None and self.card_number is None and (self.plan or not self.absent):
            raise ValueError("needs nickname, card_number, or both")
        return self


_Canary = Annotated[
    Annotated[CanaryOptions, Tag("one")]
    | Annotated[tuple[CanaryOptions, ...], Field(min_length=1, max_length=5), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "one"),
]


class ShadowOptions(Options):
    """The options of a shadow: a backend for comparison. No response uses its results.

    A sample of the lookups is repeated in the shadow, after the response to the client.
    """

    sample: Percentage
    """The percentage of uncached lookups to compare, such as 5%."""
    hits: bool = False
    """Whether cached answers are compared, too. Each costs a new lookup in the other backends."""
    rate: RateLimit = Rate(10, 1.0)
    """The maximum rate of comparisons per process. Further lookups are counted as skipped."""
    state: ConfigPath | None = None
    """The file that records the compared users, for ``tornado-idv migrate``."""


class BackendOptions(Options):
    """The common options of all backends in ``config.yaml``. Each kind adds its own options.

    Durations are in seconds. The defaults of ``cache_ttl`` and ``negative_ttl`` are in the section
    ``cache``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """The name of this backend in logs and ``lookup --explain``."""
    kind: str
    """The kind of backend, by its name in the plugin."""
    timeout: Annotated[Duration, Field(gt=0)] = 0.8
    """The maximum time of one lookup in this backend."""
    on_unavailable: Literal["fail", "continue"] = "fail"
    """The behaviour of a lookup while this backend is unavailable: fail, or query the next backend.

    With continue, a lookup of a user unknown to all later backends gives 503, never 404."""
    match: Pattern | None = None
    """A regular expression for the whole query: @nickname or the digits of a card.

    A query that does not match is not sent to this backend. It counts as "not known here"."""
    max_concurrent: Annotated[WholeNumber, Field(ge=1)] = 64
    """The maximum number of concurrent lookups in this backend, per process.

    A further lookup waits for up to half of the time to the end of ``server.request_timeout``.
    Then it fails as unavailable."""
    breaker: BreakerOptions = BreakerOptions()
    """The circuit breaker of this backend."""
    cache_ttl: Duration | None = None
    """The time to live in the cache of a user found by this backend."""
    negative_ttl: Duration | None = None
    """The time to live of "not found" in the cache. The shortest time of all backends counts."""
    canary: _Canary | None = None
    """One to five users who must be found. Without them, "not found" is not trusted."""
    shadow: ShadowOptions | None = None
    """Makes this backend a shadow: it is for comparison, and no response uses its results."""
    _folds_nicknames: bool = False

    @model_validator(mode="after")
    def _read_context(self, info: ValidationInfo) -> Self:
        self._folds_nicknames = (info.context or {}).get("nickname_case") == "fold"
        return self

    @property
    def canaries(self) -> tuple[CanaryOptions, ...]:
        """The configured canaries."""
        given = self.canary or ()
        return given if isinstance(given, tuple) else (given,)

    @property
    def folds_nicknames(self) -> bool:
        """Return whether ``identifiers.nickname_case`` is ``fold``.

        Queries then have nicknames in lower case. The backend must ignore the case of stored
        nicknames.
        """
        return self._folds_nicknames


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class Backend(ABC, Generic[OptionsT]):
    """One configured source of users.

    `open` is called once before the first `find`, and `close` once after the last. All three run on
    the event loop, so blocking calls belong in a thread.
    """

    options_type: ClassVar[type[BackendOptions]] = BackendOptions
    """The model of the options of this kind."""
    can_lose_users: ClassVar[bool] = False
    """Whether the source may lose its users, or the right to read them, without an error.

    For such a source, ``tornado-idv check`` recommends a canary.
    """

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self.name = options.name
        self._on_change: Callable[..., None] = lambda *_: None
        self._on_available: Callable[[bool], None] = lambda _: None

    @classmethod
    def user_store(cls, options: OptionsT) -> UserStore | None:  # noqa: ARG003 for subclasses
        """Return the store of all users, for ``tornado-idv users``.

        If this kind of backend has no such store, return ``None``. Raises `StartError` if the
        options do not permit a store.
        """
        return None

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query that this backend can answer. The backend gets no other queries."""
        return frozenset({ByNickname, ByCard})

    @property
    def user_count(self) -> int | None:
        """The number of users, for the metrics. ``None`` means unknown.

        The property is read on the event loop while the backend is open. It must not block.
        """
        return None

    @property
    def problem(self) -> str | None:
        """The current problem of the source, such as an invalid change or a lost connection.

        A problem makes the service degraded. The text must not contain a value of a user. Like
        `user_count`, the property must not block.
        """
        return None

    @property
    def revision(self) -> str | None:
        """An identifier of the current content of the source, equal in all processes.

        If the revision differs after a restart, answers from before the restart are dropped. With
        ``None``, these answers are kept. The revision must not change before `notify_changed` is
        called. Like `user_count`, the property must not block.
        """
        return None

    @property
    def servers(self) -> Collection[tuple[str, str]]:
        """The address and the role, such as ``standby``, of each server that lookups use.

        This is for a source that may fail over. Like `user_count`, the property must not block.
        """
        return ()

    async def open(self) -> None:
        """Prepare for lookups.

        Raises `StartError` with advice for the operator if the backend cannot be opened.
        """

    @abstractmethod
    async def find(self, query: Query) -> User | BackendResult | None:
        """Look a user up. Return ``None`` only if the source does not know the user.

        A `BackendResult` can shorten the time to live, or forbid caching. Raises `Unavailable` if
        the source cannot be reached now, and `Broken` if its data or response is wrong. No timeout
        is needed: the caller cancels this method after the option ``timeout``.
        """

    async def find_canary(self, query: Query) -> User | BackendResult | None:
        """Look a canary up as `find` does, but bypass every cache between service and source.

        If `find` sets `BackendResult.server`, this method must set it, too.
        """
        return await self.find(query)

    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:  # noqa: ARG002 for subclasses
        """Look a user up as `find` does, and record the steps, for ``tornado-idv lookup --steps``.

        A backend appends to ``steps``, also before it raises an error. It must mask its secrets by
        a `Masker`, because the command masks only values from ``${env:…}`` and ``${file:…}``.
        """
        return await self.find(query)

    async def close(self) -> None:
        """Release the resources of `open`."""

    def on_change(self, listener: Callable[..., None]) -> None:
        """Set the listener: `notify_changed` passes all its arguments to this function."""
        self._on_change = listener

    def notify_changed(self, *queries: Query) -> None:
        """Drop the cached answers of this backend after a change of its data.

        With ``queries``, drop only the answers for these users, and every "not found". Report users
        that change together in one call. Must be called on the event loop.
        """
        self._on_change(*queries)

    def on_available(self, listener: Callable[[bool], None]) -> None:
        """Set the listener: the function that `notify_available` calls with ``verified``."""
        self._on_available = listener

    def notify_available(self, *, verified: bool = False) -> None:
        """If the circuit breaker is open, let the next lookup call the backend as a probe.

        A backend may call this when its source responds again. With ``verified``, the backend has
        made sure that lookups succeed. Then the circuit breaker closes, and earlier failures no
        longer degrade the service. Must be called on the event loop.
        """
        self._on_available(verified)


AnyBackend = Backend[Any]
