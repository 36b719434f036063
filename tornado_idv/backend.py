"""The contract that a plugin fulfils: one configured source of users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from tornado_idv.model import BackendResult, ByCard, ByNickname, Query, User
from tornado_idv.scalars import Duration, Pattern, Whole


class BreakerOptions(BaseModel):
    """When a backend that keeps failing is left alone, and for how long."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    failures: Annotated[Whole, Field(ge=1)] = 5
    """How many failures in a row open the circuit."""
    open_for: Annotated[Duration, Field(gt=0)] = 5.0
    """How long it is open at first, give or take a fifth; twice as long after a failed probe."""
    open_max: Annotated[Duration, Field(gt=0)] = 60.0
    """How long it is open at most, give or take a fifth."""


class BackendOptions(BaseModel):
    """What every backend takes in ``config.yaml``; a kind adds its own options.

    Durations are in seconds. Without ``cache_ttl`` and ``negative_ttl`` the times
    of the ``cache`` section hold.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """What logs and ``lookup --explain`` call this backend."""
    kind: str
    """Which plugin's backend it is."""
    timeout: Annotated[Duration, Field(gt=0)] = 0.8
    """The longest that one lookup may take."""
    on_unavailable: Literal["fail", "continue"] = "fail"
    """Whether a lookup ends (fail) or asks the next backend (continue) if this one is unavailable.

    With continue, a user that no later backend knows is still answered 503, never 404."""
    match: Pattern | None = None
    """A regular expression: only queries that match it as a whole, written @nickname or as the
    digits of a card, are asked here; any other is not known here."""
    max_concurrent: Annotated[Whole, Field(ge=1)] = 64
    """How many lookups may be under way at once; as many again wait, more are unavailable."""
    breaker: BreakerOptions = BreakerOptions()
    """When this backend is left alone."""
    cache_ttl: Duration | None = None
    """How long a user found here is answered from the cache."""
    negative_ttl: Duration | None = None
    """How long "not found" is answered from the cache, if this backend was asked."""
    _folds_nicknames: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _learn_nickname_case(self, info: ValidationInfo) -> Self:
        self._folds_nicknames = (info.context or {}).get("nickname_case") == "fold"
        return self

    @property
    def folds_nicknames(self) -> bool:
        """Whether ``identifiers.nickname_case`` is ``fold``.

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

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self.name = options.name
        self._on_change: Callable[[], None] | None = None

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query that this backend can answer; of others it is not asked."""
        return frozenset({ByNickname, ByCard})

    async def open(self) -> None:
        """Makes ready for lookups.

        Raises `StartError`, which says what the operator can do, if that cannot be.
        """

    @abstractmethod
    async def find(self, query: Query) -> User | BackendResult | None:
        """Look a user up; ``None`` means "not known here" and nothing else.

        A `BackendResult` says the same with a shorter time to live, or that it must not be
        cached. Raises `Unavailable` if the source cannot be reached now, and `Broken` if what
        it holds or returns cannot be right.
        """

    async def close(self) -> None:
        """Gives back what `open` took."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Set the function that `notify_changed` calls."""
        self._on_change = listener

    def notify_changed(self) -> None:
        """Drop what the cache holds of this backend; for a backend that sees its data change.

        Must be called on the event loop.
        """
        if self._on_change is not None:
            self._on_change()


AnyBackend = Backend[Any]
