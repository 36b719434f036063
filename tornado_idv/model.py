"""The nouns of a lookup: who is known, what is asked, what came of it.

Their reprs leave out nicknames and card numbers, so that none reaches a log by
way of a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class User:
    """A user as a backend knows it.

    ``nickname`` is without ``@``; ``profile_url`` is ``None`` where it follows
    from the first profile site and the nickname.
    """

    plan: str
    card_number: str = field(repr=False)
    nickname: str = field(repr=False)
    profile_url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ByNickname:
    """Asks for the user with this nickname, in canonical form, without ``@``."""

    nickname: str = field(repr=False)

    @property
    def text(self) -> str:
        """The canonical spelling: ``@`` and the nickname."""
        return f"@{self.nickname}"

    def __hash__(self) -> int:
        return hash(self.nickname)  # which a text remembers


@dataclass(frozen=True, slots=True)
class ByCard:
    """Asks for the user with this card number: ASCII digits, as text."""

    card_number: str = field(repr=False)

    @property
    def text(self) -> str:
        """The canonical spelling: the digits."""
        return self.card_number

    def __hash__(self) -> int:
        return hash(self.card_number)


Query = ByNickname | ByCard


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lookup came to: *found* with a user, *not found* without one.

    ``backend`` is the name of the backend that knew the user, ``None`` when all
    that were asked said "not known here". ``since`` is when a backend said so, in
    seconds of the directory's timer. ``body`` is the answer as bytes of the wire.
    ``stale`` answers are past their time, and served because no backend could tell;
    ``coalesced`` ones come from asking that somebody else had begun.
    """

    user: User | None
    backend: str | None = None
    since: float = 0.0
    body: bytes = field(default=b"", repr=False)
    stale: bool = False
    coalesced: bool = False
    ttl: float | None = field(default=None, compare=False)
    """Seconds it is fresh; ``None`` leaves that to the cache."""
    storable: bool = field(default=True, compare=False)
    """Whether it may be remembered at all, be it to be served stale."""
    degraded: bool = field(default=False, compare=False)
    """Whether a backend before the one that answered could not be asked."""

    @property
    def found(self) -> bool:
        """Whether a user was found."""
        return self.user is not None

    def is_of(self, named: Query) -> bool:
        """Whether it tells of the user whom the query names."""
        user = self.user
        return user is not None and named in (
            ByNickname(user.nickname),
            ByCard(user.card_number),
        )
