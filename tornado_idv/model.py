"""The records of a lookup: `User`, `Query`, `BackendResult`, `Answer` and `Step`.

Their reprs omit nicknames and card numbers, so that none reaches a log through a traceback. They
are msgspec structs: each lookup creates several, and a frozen dataclass takes about 1 µs longer
(CPython 3.11). They contain no containers, so the garbage collector need not track them
(``gc=False``), even when a cache is full of them.
"""

from __future__ import annotations

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

    ``nickname`` is without ``@``. If ``profile_url`` is ``None``, it is derived from the first
    profile site and the nickname.
    """

    plan: str
    card_number: str
    nickname: str
    profile_url: str | None = None


class ByNickname(_Record, frozen=True):
    """The query for the user with this nickname, in canonical form, without ``@``."""

    nickname: str
    text: str = ""
    """The canonical text: ``@`` and the nickname. Computed; any argument is replaced."""

    def __post_init__(self) -> None:
        force_setattr(self, "text", f"@{self.nickname}")


class ByCard(_Record, frozen=True):
    """The query for the user with this card number: ASCII digits, as text."""

    card_number: str

    @property
    def text(self) -> str:
        """The canonical text: the digits."""
        return self.card_number


Query = ByNickname | ByCard


class BackendResult(_Record, frozen=True):
    """Result of a backend, and how long it may be cached.

    ``user`` is ``None`` for "not known here". ``ttl``, in seconds, can only shorten the configured
    time; ``None`` does not change it. With ``storable=False`` the result is not cached at all, not
    even as a stale answer. ``server`` identifies the server of the result, if a backend has several
    that may differ: the canary of one server does not confirm "not known here" of another.
    """

    user: User | None
    ttl: float | None = None
    storable: bool = True
    server: str | None = None


class SharedAnswer(_Record, frozen=True):
    """An answer in a shared cache; times are in seconds of the wall clock.

    ``user`` is ``None`` for "not found". It is fresh until ``fresh_until``, and may be served
    stale until ``stale_until``.
    """

    user: User | None
    backend: str | None
    fresh_until: float
    stale_until: float


class Answer(_Record, frozen=True):
    """The result of a lookup: *found* with a user, *not found* without one.

    ``backend`` is the name of the backend that found the user, ``None`` for *not found*. ``since``
    is the time of the lookup, in seconds of the cache's timer. ``body`` is the response body. A
    ``stale`` answer has expired, and is served because the backends are unavailable. A
    ``coalesced`` one comes from a lookup that another caller started, a ``shared`` one from the
    shared cache.
    """

    user: User | None
    backend: str | None = None
    since: float = 0.0
    body: bytes = b""
    stale: bool = False
    coalesced: bool = False
    ttl: float | None = None
    """Time to live in seconds; ``None`` for that of the cache."""
    storable: bool = True
    """Whether the answer may be cached."""
    degraded: bool = False
    """Whether an earlier backend, which may know the user, was skipped as unavailable."""
    shared: bool = False
    server: str | None = None
    """The server of the backend that answered; not kept in a cache."""

    @property
    def found(self) -> bool:
        return self.user is not None


class Step(Struct, frozen=True):
    """A step of a lookup, for the operator: a request, a response, the result of an expression.

    ``result`` is JSON or bytes; of others the ``repr`` is shown. ``expression`` gave the result,
    and ``missing`` are the members that it reads but did not find. A terminal shows ``shown``
    characters of a result without an expression.
    """

    name: str
    result: Any
    expression: str = ""
    note: str = ""
    shown: int = 4096
    missing: tuple[str, ...] = ()

    def masked(self, mask: Callable[[Any], Any]) -> Step:
        """Return the step without secrets; ``mask`` is a `Masker`."""
        result, expression, note = map(mask, (self.result, self.expression, self.note))
        return replace(self, result=result, expression=expression, note=note)
