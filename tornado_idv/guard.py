"""One backend behind its guard: it answers in time and in shape, or could not tell."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tornado_idv.backend import AnyBackend
from tornado_idv.errors import Broken, CouldNotTell, Unavailable, trace
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, ByNickname, Query, User

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """That a backend was asked: what it said, in a phrase, after how many seconds."""

    backend: str
    said: str
    seconds: float


def unheard(asked: Asked) -> None:
    """Listens to nothing: for whoever does not want to be told."""


class Guard:
    """The plugin by which a configured backend takes part in the dispatch.

    Whatever the backend does, its lookups end within its ``timeout`` (seconds) as a
    `User` that was asked for, as "not known here", or as `Unavailable` or `Broken`
    in the backend's name. ``told`` hears of every end.
    """

    def __init__(self, backend: AnyBackend, told: Callable[[Asked], None]) -> None:
        self.backend = backend
        self.name = backend.name
        self._told = told
        self._timeout = backend.options.timeout

    @hookimpl
    def idv_identify(self, query: Query) -> Coroutine[Any, Any, Answer | None] | None:
        """Asks the backend, unless it does not serve this kind of query."""
        return self._ask(query) if type(query) in self.backend.serves else None

    async def _ask(self, query: Query) -> Answer | None:
        began = time.monotonic()
        said = "gave up: the caller left"
        try:
            user = await self._find(query)
            said = "not known here" if user is None else "found"
        except CouldNotTell as error:
            error.backend = self.name
            said = error.reason
            raise
        finally:
            self._told(Asked(self.name, said, time.monotonic() - began))
        return None if user is None else Answer(user, self.name)

    async def _find(self, query: Query) -> User | None:
        try:
            async with asyncio.timeout(self._timeout):
                user = await self.backend.find(query)
        except CouldNotTell:
            raise
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Broken("its own work was cancelled") from None
        except Exception as error:  # noqa: BLE001 a plugin may raise anything
            _log.error("backend %s failed unforeseen:\n%s", self.name, trace(error))
            raise Broken(f"failed with {type(error).__name__}") from None
        return None if user is None else _checked(user, query)


def _checked(user: object, query: Query) -> User:
    if not isinstance(user, User):
        raise Broken("answered something that is no user")
    if not _is_whole(user):
        raise Broken("answered a user with a field missing or not text")
    if isinstance(query, ByNickname):
        fits = user.nickname == query.nickname
    else:
        fits = user.card_number == query.card_number
    if not fits:
        raise Broken("answered another user than asked for")
    return user


def _is_whole(user: User) -> bool:
    fields = [user.plan, user.card_number, user.nickname]
    if user.profile_url is not None:
        fields.append(user.profile_url)
    return all(isinstance(field, str) and field and _is_encodable(field) for field in fields)


def _is_encodable(text: str) -> bool:
    """Whether the text is UTF-8 on the wire; a lone surrogate is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
