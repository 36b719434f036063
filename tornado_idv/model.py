"""The data classes of lookups: `User`, `Query`, `BackendResult`, `Answer` and `Step`.

Their reprs omit nicknames and card numbers, so a traceback cannot write them to a log. The classes
are msgspec structs, because each lookup creates several objects, and a frozen dataclass takes about
1 µs longer (CPython 3.11). The objects contain no containers, so the garbage collector need not
track them (``gc=False``). This matters for a cache with many objects.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

_PRIVATE = {"body", "card_number", "nickname", "profile_url", "text"}


class _Record(Struct, frozen=True, gc=False):
    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name not in _PRIVATE]
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({fields})"


class User(_Record, frozen=True):
    """A user as stored by a backend.

    ``nickname`` has no ``@``. If ``profile_url`` is ``None``, the URL in responses is derived from
    the first profile site and the nickname.
    """

    plan: str
    card_number: str
    nickname: str
    profile_url: str | None = None


class ByNickname(_Record, frozen=True):
    """The query for the user with a nickname, in canonical form without ``@``."""

    nickname: str
    text: str = ""
    """The canonical text: ``@`` and the nickname. Computed: an argument is replaced."""

    def __post_init__(self) -> None:
        force_setattr(self, "text", f"@{self.nickname}")


class ByCard(_Record, frozen=True):
    """The query for the user with a card number, a text of ASCII digits."""

    card_number: str

    @property
    def text(self) -> str:
        """The canonical text: the digits."""
        return self.card_number


Query = ByNickname | ByCard


class BackendResult(_Record, frozen=True):
    """The result of a backend, with options for the cache.

    ``user`` is ``None`` for "not known here". ``ttl`` is a time to live in seconds. It can only
    shorten the configured time. With ``storable=False`` the result is not cached at all, not even
    as a stale answer. If a backend has several servers that may differ, ``server`` identifies the
    server of this result: the canary of one server does not confirm "not known here" of another.
    """

    user: User | None
    ttl: float | None = None
    storable: bool = True
    server: str | None = None


class SharedAnswer(_Record, frozen=True):
    """An answer in a shared cache. Times are in seconds of the wall clock.

    ``user`` is ``None`` for "not found". The answer is fresh until ``fresh_until``, and may be
    served stale until ``stale_until``.
    """

    user: User | None
    backend: str | None
    fresh_until: float
    stale_until: float


class Answer(_Record, frozen=True):
    """The result of a lookup: *found* with a user, *not found* without a user.

    ``backend`` is the name of the backend that found the user, or ``None`` for *not found*.
    ``since`` is the time of the lookup, in seconds of the cache's timer. ``body`` is the response
    body. A ``stale`` answer has expired, and is served because the backends are unavailable. A
    ``coalesced`` answer comes from a lookup that another caller started. A ``shared`` answer comes
    from the shared cache.
    """

    user: User | None
    backend: str | None = None
    since: float = 0.0
    body: bytes = b""
    stale: bool = False
    coalesced: bool = False
    ttl: float | None = None
    """Time to live in seconds. ``None`` means the configured time of the cache."""
    storable: bool = True
    """Whether the answer may be cached."""
    degraded: bool = False
    """Whether an earlier backend, which may know the user, was skipped as unavailable."""
    shared: bool = False
    server: str | None = None
    """The server of the backend that answered. The cache does not store it."""

    @property
    def found(self) -> bool:
        return self.user is not None


class Step(Struct, frozen=True):
    """A step of an explained lookup: a request, a response, or the result of an expression.

    ``result`` is JSON data or bytes; any other value is printed as its ``repr``. ``expression`` is
    the expression that gave the result, if any. ``missing`` are the members that the expression did
    not find. Without an expression, a terminal shows the first ``shown`` characters of the result.
    """

    name: str
    result: Any
    expression: str = ""
    note: str = ""
    shown: int = 4096
    missing: tuple[str, ...] = ()

    def masked(self, mask: Callable[[Any], Any]) -> "Step":
        """Return the step with its secrets masked. ``mask`` is a `Masker`."""
        result, expression, note = map(mask, (self.result, self.expression, self.note))
        return replace(self, result=result, expression=expression, note=note)
