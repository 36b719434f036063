"""The purges of which a process knows: they say which entries of earlier generations are valid."""

from __future__ import annotations

from collections.abc import Iterable

from tornado_idv import Purge, SharedAnswer

_MAX_USERS = 10_000
"""Nicknames and card numbers that are kept, which are about 1.5 MB; entries from before the purge
of one that is dropped are not valid."""


class PurgeLog:
    """For backends and users, the generation that began with their last purge."""

    def __init__(self) -> None:
        self._everything = 0
        self._any = 0
        self._backends: dict[str, int] = {}
        self._users: dict[str, int] = {}

    def add(self, generation: int, purge: Purge) -> None:
        """Add the purge with which this generation began."""
        self._any = max(self._any, generation)
        if not any(purge):
            self._everything = max(self._everything, generation)
        for name in purge.backends:
            self._backends[name] = max(self._backends.get(name, 0), generation)
        for query in purge.queries:
            self._users[query.text] = max(self._users.pop(query.text, 0), generation)
        while len(self._users) > _MAX_USERS:
            dropped = self._users.pop(next(iter(self._users)))
            self._everything = max(self._everything, dropped)

    def is_valid(self, generation: int, answer: SharedAnswer) -> bool:
        """Return whether no later purge names the answer; each of them names "not found"."""
        if answer.user is None:
            return generation >= self._any
        names = f"@{answer.user.nickname}", answer.user.card_number
        return generation >= max(
            self._everything,
            self._backends.get(answer.backend or "", 0),
            *(self._users.get(name, 0) for name in names),
        )


def covers(purges: Iterable[Purge], purge: Purge) -> bool:
    """Return whether these purges together name all that this one does."""
    backends, queries = set(purge.backends), set(purge.queries)
    for each in purges:
        if not any(each):
            return True
        backends.difference_update(each.backends)
        queries.difference_update(each.queries)
    return any(purge) and not backends and not queries
