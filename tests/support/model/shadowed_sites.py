"""Two sources of the same users that change, fail, and lose users, and what each held when."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from tornado_idv.errors import Broken, Unavailable
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.model import Query, User

Mode = Literal["normal", "slow", "failing", "broken", "hanging", "emptied", "no canary", "problem"]
FAULTS: tuple[Mode, ...] = (
    "slow", "failing", "broken", "hanging", "emptied", "no canary", "problem"
)  # fmt: skip
CANARY = "idv-canary"
_FAILED: frozenset[Mode] = frozenset({"failing", "broken", "hanging"})
_UNTRUSTED: frozenset[Mode] = frozenset({"emptied", "no canary", "problem"})
AFTER_FAILURE = 1.0
"""Seconds for which a circuit breaker may stay open, with the next probe."""


class Held(NamedTuple):
    """The answer that a source would give, and whether "not found" is to be believed."""

    user: User | None
    trusted: bool


@dataclass
class Site:
    """One source; a user changes at most once in some seconds, which no comparison takes."""

    name: str
    random: random.Random
    modes: list[tuple[float, Mode]] = field(default_factory=lambda: [(-inf, "normal")])
    users: dict[str, list[tuple[float, User | None]]] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        return self.modes[-1][1]

    def enter(self, mode: Mode) -> None:
        self.modes.append((_now(), mode))

    def put(self, key: str, user: User | None) -> None:
        """Change a user from now on."""
        self.users.setdefault(key, []).append((_now(), user))

    def held(self, key: str, at: float) -> Held:
        """Return what it would have answered at a time."""
        since, mode = self.modes[_index(self.modes, at)]
        if mode == "emptied":
            return Held(None, trusted=False)
        history = self.users[key]
        index = _index(history, since if mode == "problem" else at)
        return Held(history[index][1] if index >= 0 else None, trusted=mode != "problem")

    def times(self, key: str, start: float, end: float) -> Iterator[float]:
        """Yield when what it held may have changed."""
        for changes in (self.modes, self.users[key]):
            yield from (at for at, _ in changes if start < at <= end)

    def was(self, modes: frozenset[Mode], start: float, end: float) -> bool:
        """Return whether it was in one of these modes in that time."""
        first = max(_index(self.modes, start), 0)
        return any(mode in modes for at, mode in self.modes[first:] if at <= end)

    def changed(self, key: str, start: float, end: float) -> bool:
        return len({self.held(key, at) for at in (start, *self.times(key, start, end))}) > 1


class SiteBackend(Backend[BackendOptions]):
    """The backend of a site: it reads at one instant of a lookup, which takes a while."""

    def __init__(self, site: Site, options: BackendOptions) -> None:
        super().__init__(options)
        self.site = site

    @property
    def problem(self) -> str | None:
        return "stale" if self.site.mode == "problem" else None

    async def find(self, query: Query) -> User | None:
        site, choose = self.site, self.site.random
        longest = 0.12 if site.mode == "slow" else 0.02
        await asyncio.sleep(choose.uniform(0, longest / 2))
        mode, key = site.mode, query.text.removeprefix("@")
        if key == CANARY:
            found = None if mode in ("emptied", "no canary") else User("Free", "1", CANARY)
        else:
            found = site.held(key, _now()).user
        await asyncio.sleep(60 if mode == "hanging" else choose.uniform(0, longest / 2))
        if mode == "failing":
            raise Unavailable("down")
        if mode == "broken":
            raise Broken("nonsense")
        return found


@dataclass(frozen=True)
class Truth:
    """Says which results were right for a comparison between two times."""

    source: Site
    target: Site

    def allows(
        self, result: str, fields: Sequence[str], key: str, start: float, end: float
    ) -> bool:
        """Return whether a result agrees with what both held.

        A difference must have been there at one instant, and a match is the same user, or none,
        in both at some time.
        """
        both = (self.source, self.target)
        match result:
            case "source_failed":
                return self.source.was(_FAILED, start - AFTER_FAILURE, end)
            case "target_failed":
                return self.target.was(_FAILED, start - AFTER_FAILURE, end)
            case "unverified":
                untrusted = any(each.was(_UNTRUSTED, start, end) for each in both)
                return untrusted or self.source.changed(key, start, end)
            case "match":
                held = [{*self._held(each, key, start, end)} for each in both]
                return any(each.user or each.trusted for each in held[0] & held[1])
        instants = {start, *self.source.times(key, start, end), *self.target.times(key, start, end)}
        return any(
            kind == result and {*fields} == differing
            for kind, differing in (self._difference(key, at) for at in instants)
        )

    def _held(self, site: Site, key: str, start: float, end: float) -> Iterator[Held]:
        for at in (start, *site.times(key, start, end)):
            held = site.held(key, at)
            yield Held(held.user, trusted=True) if held.user else held

    def _difference(self, key: str, at: float) -> tuple[str, set[str]]:
        source, target = self.source.held(key, at), self.target.held(key, at)
        if source.user and target.user:
            names = ("plan", "card_number")
            pairs = (
                (each, getattr(source.user, each), getattr(target.user, each)) for each in names
            )
            fields = {name for name, one, other in pairs if one != other}
            return ("differs", fields) if fields else ("match", fields)
        if source.user and target.trusted:
            return "missing", set()
        return ("extra", set()) if target.user and source.trusted else ("match", set())


def _index(changes: Sequence[tuple[float, object]], at: float) -> int:
    return bisect_right(changes, at, key=lambda change: change[0]) - 1


def _now() -> float:
    return asyncio.get_running_loop().time()
