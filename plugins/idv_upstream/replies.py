"""What a reply comes to: a user, "not known here", or that it could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NoReturn

from idv_upstream.client import Reply
from idv_upstream.documents import decode
from idv_upstream.freshness import is_storable, seconds_fresh
from idv_upstream.mapping import Reading
from idv_upstream.responses import ResponseOptions
from idv_upstream.statuses import Outcome, outcome
from tornado_idv import BackendResult, Broken, Query, Unavailable, User

_JSON = "application/json"
_REFUSED = (401, 403, 407)
_REDIRECTS = (301, 302, 303, 307, 308)


class Replies:
    """Reads the replies of one directory.

    ``statuses`` say what single statuses mean there, ``hints`` whether the directory may
    shorten how long its answers are remembered, ``credential`` whether one is
    configured for it, ``folds_nicknames`` whether the case of nicknames does not count.
    """

    def __init__(
        self,
        options: ResponseOptions,
        statuses: Mapping[int, Outcome],
        *,
        hints: bool,
        credential: bool,
        folds_nicknames: bool = False,
    ) -> None:
        self.reading = Reading(options, folds_nicknames=folds_nicknames)
        self.outcome = cache(partial(outcome, overrides=statuses))
        """What a reply of a status comes to."""
        self.wants_body = cache(self._wants_body)
        """Whether the body of a reply of a status says anything."""
        self._reads_nothing = options.found_when is not None
        self._only_json = options.media_type == "json"
        self._hints = hints
        self._credential = credential

    def read(self, query: Query, reply: Reply) -> User | BackendResult | None:
        """Who it is, for how long it may be remembered; raises `Unavailable` or `Broken`."""
        user = self._user(query, reply)
        if not self._hints or "Cache-Control" not in reply.headers:
            return user
        seconds, storable = seconds_fresh(reply.headers), is_storable(reply.headers)
        return BackendResult(user, ttl=seconds, storable=storable)

    def document(self, reply: Reply) -> Any:
        """The JSON in a reply; raises `Broken` if there is none.

        Nothing at all is null, where ``found_when`` says what that means.
        """
        if not reply.body and self._reads_nothing:
            return None
        if self._only_json and not _is_json(reply.headers.get("Content-Type", "")):
            raise Broken(f"an answer of status {reply.status} that is not application/json")
        return decode(reply.body)

    def _wants_body(self, status: int) -> bool:
        meant = self.outcome(status)
        return meant is Outcome.READ or (
            meant is Outcome.NOT_KNOWN and self.reading.reads_not_known
        )

    def _user(self, query: Query, reply: Reply) -> User | None:
        meant = self.outcome(reply.status)
        if meant is Outcome.READ:
            return self.reading.user(query, self.document(reply))
        if meant is not Outcome.NOT_KNOWN:
            self._refuse(meant, reply.status)
        if self.reading.reads_not_known and not self.reading.is_not_known(self.document(reply)):
            raise Broken(
                f'an answer of status {reply.status} that does not say "not known" (not_known_when)'
            )
        return None

    def _refuse(self, meant: Outcome, status: int) -> NoReturn:
        if meant is Outcome.UNAVAILABLE:
            raise Unavailable(f"cannot answer now (status {status})")
        if status in _REFUSED and self._credential:
            raise Broken(f"our credentials are refused (status {status})")
        if status in _REFUSED:
            raise Broken(f"refused (status {status}), and auth sets no credential")
        if status in _REDIRECTS:
            raise Broken(f"a redirect (status {status}), which is not followed")
        raise Broken(f"an answer of status {status}, which is neither a user nor nobody")


def _is_json(content_type: str) -> bool:
    if content_type == _JSON:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == _JSON or media_type.endswith("+json")
