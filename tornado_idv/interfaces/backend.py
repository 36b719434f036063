"""The interface of a backend, one configured source of users; plugins implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import (
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

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
    """How long the circuit is open at first, ± 20 %; it doubles after each failed probe."""
    open_max: Annotated[Duration, Field(gt=0)] = 60.0
    """How long the circuit is open at most, ± 20 %."""


class CanaryOptions(Options):
    """A user who must always be found, for each kind of query to protect.

    If this user is missing, "not found" is not trusted: the source may have lost its users, or the
    right to read them. With ``plan`` or ``absent`` no answer is trusted then: conditions may read
    members that are hidden or misspelt.
    """

    nickname: str | None = None
    """The nickname, such as "@idv-canary"; protects lookups by nickname."""
    card_number: str | None = None
    """The card number; protects lookups by card number."""
    plan: Annotated[str, Field(min_length=1)] | None = None
    """The plan that this user must have."""
    absent: str | None = None
    """A disabled user who must not be found, as @nickname or the digits of a card."""
    max_age: Duration = 5.0
    """How long before the end of a lookup the canary's own lookup may have begun.

    This is for lookups that the canary must confirm. With 0s it is looked up after each of them.
    With several canaries the shortest time counts."""

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
    """Comparison of a backend that never answers with the backends that do.

    It gets a sample of the real lookups, after their responses.
    """

    sample: Percentage
    """The percentage of lookups past the cache to compare, such as 5%."""
    hits: bool = False
    """Whether answers of the cache are compared, too. Each costs a lookup in the source."""
    rate: RateLimit = Rate(10, 1.0)
    """How many lookups each process compares at most; more are counted as skipped."""
    state: ConfigPath | None = None
    """The file that records the compared users, for ``tornado-idv migrate``."""


class BackendOptions(Options):
    """The options of every backend in ``config.yaml``; a kind adds its own.

    Durations are in seconds. ``cache_ttl`` and ``negative_ttl`` default to those of the
    ``cache`` section.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """The name of this backend in logs and ``lookup --explain``."""
    kind: str
    """The kind of backend, as its plugin names it."""
    timeout: Annotated[Duration, Field(gt=0)] = 0.8
    """How long one lookup may take."""
    on_unavailable: Literal["fail", "continue"] = "fail"
    """Whether a lookup fails or continues with the next backend while this one is unavailable.

    With continue, a user unknown to all later backends still gets 503, never 404."""
    match: Pattern | None = None
    """A regular expression that the whole query must match: @nickname or the digits of a card.

    Other queries are not sent to this backend: they are "not known here"."""
    max_concurrent: Annotated[WholeNumber, Field(ge=1)] = 64
    """The maximum number of concurrent lookups.

    Other lookups wait for up to half of their remaining time, and then fail as unavailable."""
    breaker: BreakerOptions = BreakerOptions()
    """The circuit breaker of this backend."""
    cache_ttl: Duration | None = None
    """How long a user found here is served from the cache."""
    negative_ttl: Duration | None = None
    """How long "not found" is served from the cache; the shortest time of all backends counts."""
    canary: _Canary | None = None
    """A user, or a list of up to five, who must be found for "not found" to be trusted."""
    shadow: ShadowOptions | None = None
    """Makes this backend a shadow: it never answers, and is compared with the others."""
    _folds_nicknames: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _read_context(self, info: ValidationInfo) -> Self:
        context = info.context or {}
        self._folds_nicknames = context.get("nickname_case") == "fold"
        return self

    @property
    def canaries(self) -> tuple[CanaryOptions, ...]:
        """The configured canaries."""
        given = self.canary or ()
        return given if isinstance(given, tuple) else (given,)

    @property
    def folds_nicknames(self) -> bool:
        """Return whether ``identifiers.nickname_case`` is ``fold``.

        The backend then gets nicknames in lower case, and must find those stored in another case.
        """
        return self._folds_nicknames


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class Backend(ABC, Generic[OptionsT]):
    """One configured source of users.

    `open` is called once before the first `find`, `close` once after the last;
    all three run on the event loop, so blocking calls belong in a thread.
    """

    options_type: ClassVar[type[BackendOptions]] = BackendOptions
    """The model of this kind's options."""
    can_lose_users: ClassVar[bool] = False
    """Whether the source may lose its users, or the right to read them, without an error.

    ``check`` recommends a canary then.
    """

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self.name = options.name
        self._on_change: Callable[..., None] | None = None
        self._on_available: Callable[[bool], None] | None = None

    @classmethod
    def user_store(cls, options: OptionsT) -> UserStore | None:  # noqa: ARG003 for subclasses
        """Return access to all users, for ``tornado-idv users``.

        ``None`` if this kind of backend offers none; raises `StartError` if these options do not.
        """
        return None

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query that this backend can answer; it gets no others."""
        return frozenset({ByNickname, ByCard})

    @property
    def user_count(self) -> int | None:
        """The number of users, for the metrics; ``None`` if unknown.

        Read while the backend is open, on the event loop: it must not block.
        """
        return None

    @property
    def problem(self) -> str | None:
        """Problem with the source, such as an invalid change or a lost connection.

        It makes the service degraded. No value of a user may be in it. Read as `user_count`.
        """
        return None

    @property
    def revision(self) -> str | None:
        """Identity of the content that answers come from, equal in all processes.

        With another identity after a restart, answers from before are dropped; with ``None`` they
        are kept. It must not change before `notify_changed` was called. Read as `user_count`.
        """
        return None

    @property
    def servers(self) -> Collection[tuple[str, str]]:
        """The servers that lookups use: the address and the role of each, such as ``standby``.

        For a source that may fail over. Read as `user_count`.
        """
        return ()

    async def open(self) -> None:
        """Prepare for lookups.

        Raises `StartError` with advice for the operator if the backend cannot be opened.
        """

    @abstractmethod
    async def find(self, query: Query) -> User | BackendResult | None:
        """Look a user up; ``None`` means "not known here" and nothing else.

        A `BackendResult` adds a shorter time to live, or forbids caching. Raises `Unavailable` if
        the source cannot be reached now, and `Broken` if its data or response cannot be right. It
        need not bound its time: the guard cancels it after ``timeout``.
        """

    async def find_canary(self, query: Query) -> User | BackendResult | None:
        """Look a canary up as `find` does, but past every cache on the way to the source.

        A backend that sets `BackendResult.server` must set it here, too.
        """
        return await self.find(query)

    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:  # noqa: ARG002 for subclasses
        """Look a user up as `find` does, for ``tornado-idv lookup --steps``.

        A backend adds its steps to ``steps``, also before it raises. It must mask its own secrets
        (`Masker`); the command masks values of ``${env:…}`` and ``${file:…}``.
        """
        return await self.find(query)

    async def close(self) -> None:
        """Release the resources of `open`."""

    def on_change(self, listener: Callable[..., None]) -> None:
        """Set the listener of `notify_changed`; it gets the same arguments."""
        self._on_change = listener

    def notify_changed(self, *queries: Query) -> None:
        """Drop the cached answers of this backend after a change of its data.

        With ``queries`` only the answers for these users are dropped, and every "not found":
        report users that change together in one call. Must be called on the event loop.
        """
        if self._on_change is not None:
            self._on_change(*queries)

    def on_available(self, listener: Callable[[bool], None]) -> None:
        """Set the listener of `notify_available`; it gets ``verified``."""
        self._on_available = listener

    def notify_available(self, *, verified: bool = False) -> None:
        """Let the next lookup probe an open circuit breaker.

        For a backend that notices when its source responds again. With ``verified`` it has made
        sure that lookups succeed: the circuit breaker closes, and earlier failures no longer
        degrade the service. Must be called on the event loop.
        """
        if self._on_available is not None:
            self._on_available(verified)


AnyBackend = Backend[Any]
