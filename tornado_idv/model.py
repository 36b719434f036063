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


@dataclass(frozen=True, slots=True)
class ByCard:
    """Asks for the user with this card number: ASCII digits, as text."""

    card_number: str = field(repr=False)


Query = ByNickname | ByCard


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lookup came to: *found* with a user, *not found* without one.

    ``backend`` is the name of the backend that knew the user, ``None`` when all
    that were asked said "not known here". ``since`` is when a backend said so, in
    seconds of the directory's timer. ``body`` is the answer as bytes of the wire.
    """

    user: User | None
    backend: str | None = None
    since: float = 0.0
    body: bytes = field(default=b"", repr=False)

    @property
    def found(self) -> bool:
        """Whether a user was found."""
        return self.user is not None
