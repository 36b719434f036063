"""The contract that a plugin fulfils: one configured source of users."""

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
    """The number of consecutive failures that open the circuit."""
    open_for: Annotated[Duration, Field(gt=0)] = 5.0
    """How long the circuit is open at first, ± 20 %; it doubles after each failed probe."""
    open_max: Annotated[Duration, Field(gt=0)] = 60.0
    """How long the circuit is open at most, ± 20 %."""


class CanaryOptions(Options):
    """A user who must always be found, for each kind of query that is to be protected.

    Otherwise "not found" is not believed: the source lost its users, or the rights to read them.
    With ``plan`` or ``absent`` nothing is: conditions read members that may be hidden or misspelt.
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
    """How long before the end of a lookup that finds no user the canary may have been looked up.

    With 0s it is looked up after each of them. Of several canaries the shortest time counts."""

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
    """The comparison of a backend that never answers with those that do.

    A sample of real lookups is put to it as well, after their responses.
    """

    sample: Percentage
    """The percentage of lookups past the cache that are compared, such as 5%."""
    hits: bool = False
    """Whether lookups that the cache answers are compared, too; for each, the source is asked."""
    rate: RateLimit = Rate(10, 1.0)
    """How many lookups each process compares at most; more are counted as skipped."""
    state: ConfigPath | None = None
    """The file that keeps which users were compared, for ``tornado-idv migrate``."""


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

    With continue, a user that no later backend knows is still answered 503, never 404."""
    match: Pattern | None = None
    """A regular expression that a whole query must match, as @nickname or the digits of a card.

    Other queries are not sent to this backend: they are "not known here"."""
    max_concurrent: Annotated[WholeNumber, Field(ge=1)] = 64
    """The maximum number of concurrent lookups.

    Further ones wait for up to half of the time that they have left, and are then unavailable."""
    breaker: BreakerOptions = BreakerOptions()
    """The circuit breaker of this backend."""
    cache_ttl: Duration | None = None
    """How long a user found here is served from the cache."""
    negative_ttl: Duration | None = None
    """How long "not found" is served from the cache, if this backend was queried."""
    canary: _Canary | None = None
    """A user, or a list of up to five, who must be found for "not found" to be believed."""
    shadow: ShadowOptions | None = None
    """What makes this backend a shadow: it never answers, and is compared with those that do."""
    _folds_nicknames: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _read_context(self, info: ValidationInfo) -> Self:
        context = info.context or {}
        self._folds_nicknames = context.get("nickname_case") == "fold"
        return self

    @property
    def canaries(self) -> tuple[CanaryOptions, ...]:
        """The canaries, of which there may be none."""
        given = self.canary or ()
        return given if isinstance(given, tuple) else (given,)

    @property
    def folds_nicknames(self) -> bool:
        """Return whether ``identifiers.nickname_case`` is ``fold``.

        The backend is then asked for nicknames in lower case, and finds those that are
        stored in another case too.
        """
        return self._folds_nicknames


OptionsT = TypeVar("OptionsT", bound=BackendOptions)


class Backend(ABC, Generic[OptionsT]):
    """One configured source of users.

    `open` is called once before the first `find`, `close` once after the last;
    all three run on the event loop, so anything that blocks belongs in a thread.
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
        """The kinds of query that this backend can answer; of others it is not asked."""
        return frozenset({ByNickname, ByCard})

    @property
    def user_count(self) -> int | None:
        """The number of users, for the metrics; ``None`` where only the source knows.

        Read while the backend is open, on the event loop: it must not block.
        """
        return None

    @property
    def problem(self) -> str | None:
        """Problem with the source, such as a rejected edit or a lost connection.

        It makes the service degraded. No value of a user may be in it. Read as `user_count`.
        """
        return None

    @property
    def revision(self) -> str | None:
        """Identity of the content that answers come from, also in another process.

        Answers from before a restart are dropped if it is another one after that, and kept if it
        is ``None`` then. It must not change before `notify_changed` was called. Read as
        `user_count`.
        """
        return None

    @property
    def servers(self) -> Collection[tuple[str, str]]:
        """The servers that lookups use: of each its address, and its role, such as ``standby``.

        For a source that may fail over. Read as `user_count`.
        """
        return ()

    async def open(self) -> None:
        """Makes ready for lookups.

        Raises `StartError`, which says what the operator can do, if that cannot be.
        """

    @abstractmethod
    async def find(self, query: Query) -> User | BackendResult | None:
        """Look a user up; ``None`` means "not known here" and nothing else.

        A `BackendResult` says the same with a shorter time to live, or that it must not be
        cached. Raises `Unavailable` if the source cannot be reached now, and `Broken` if what
        it holds or returns cannot be right. It need not bound its time: the guard cancels it
        after ``timeout``.
        """

    async def find_canary(self, query: Query) -> User | BackendResult | None:
        """Look a canary up as `find` does, but past every cache on the way to the source.

        A backend that names its servers in `BackendResult.server` does so here, too.
        """
        return await self.find(query)

    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:  # noqa: ARG002 for subclasses
        """Look a user up as `find` does, for ``tornado-idv lookup --steps``.

        A backend that has more to show than the result adds it to ``steps``, also before it raises.
        Its own secrets must be masked (`Masker`); values of ``${env:…}`` and ``${file:…}`` in the
        configuration are.
        """
        return await self.find(query)

    async def close(self) -> None:
        """Gives back what `open` took."""

    def on_change(self, listener: Callable[..., None]) -> None:
        """Set the function that `notify_changed` calls, with the same arguments."""
        self._on_change = listener

    def notify_changed(self, *queries: Query) -> None:
        """Drop what the cache holds of this backend; for a backend that sees its data change.

        With ``queries`` only what it holds of the users they name is dropped, and every "not
        found": report users that change together in one call. Must be called on the event loop.
        """
        if self._on_change is not None:
            self._on_change(*queries)

    def on_available(self, listener: Callable[[bool], None]) -> None:
        """Set the function that `notify_available` calls, with ``verified``."""
        self._on_available = listener

    def notify_available(self, *, verified: bool = False) -> None:
        """Let the next lookup probe an open circuit breaker.

        For a backend that sees its source respond again. With ``verified`` the backend has made
        sure that lookups succeed: the circuit breaker closes, and the service is no longer
        degraded by failures of before. Must be called on the event loop.
        """
        if self._on_available is not None:
            self._on_available(verified)


AnyBackend = Backend[Any]
