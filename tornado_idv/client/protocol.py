"""Requests, attempts and responses of both clients, without I/O."""

from __future__ import annotations

import json
import os
import random
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tornado_idv import strict_json
from tornado_idv.client.errors import (
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    NotFound,
    RateLimited,
    Undetermined,
    Unexpected,
)

if TYPE_CHECKING:
    import ssl

_FoundT = TypeVar("_FoundT")
_UserT = TypeVar("_UserT")
Fields = Callable[[str, list[str]], list[str]]
"""Returns the values of a header field, one for each line that has it, or the second argument."""
MAX_BODY = 64 * 1024
"""Bytes of a response body that are read."""
MAX_IDLE_TIME = 5.0
"""Seconds after which a kept connection is not used: the service closes it after 10 s."""
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<authority>(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?)(?P<path>(?:/[!-\"$->@-~]*)?)",
    re.ASCII | re.IGNORECASE,
)
_ID_FIELDS = ("X-Request-ID", "X-IDV-Request-ID")
"""A proxy may replace the first; the service knows the second since version 1.0."""
_TEXT = re.compile(r"[ -~]+")
_VISIBLE = re.compile(r"[!-~]+")
_LENGTH = re.compile(r"[1-9][0-9]{0,4}")
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
_REASON = re.compile(r"[a-z_]{1,40}")
_FIRST_PAUSE = 0.1
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_REFUSED: dict[int, tuple[type[ClientError], str]] = {
    401: (InvalidKey, "the key is not valid"),
    403: (MissingScope, "the key lacks the scope of this lookup"),
    422: (InvalidFormat, "the value is in no valid format"),
}


@dataclass(frozen=True, slots=True)
class User:
    """A user; ``nickname`` begins with ``@``. Its repr shows the plan alone."""

    plan: str
    card_number: str = field(repr=False)
    nickname: str = field(repr=False)
    profile_url: str = field(repr=False, default="")


class StaleConnection(Undetermined):
    """A kept connection was closed before a response."""


class BaseClient(Generic[_FoundT, _UserT]):
    """Arguments and methods of both clients; those of `AsyncClient` return awaitables.

    Each provides `_exchange`, and `_run` for the coroutine of a call; in `Client` it never waits.

    ``deadline`` bounds a call with all its attempts, in seconds. ``traceparent`` is called for each
    attempt and returns the value of that header field, or ``None``. ``clock``, ``sleep`` and
    ``chance`` are for tests. Raises `ValueError` for an invalid ``url`` or ``key``.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        deadline: float = 2.0,
        traceparent: Callable[[], str | None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        match = _URL.fullmatch(url)
        if match is None or int(match["port"] or 0) > 65535:  # noqa: PLR2004 - the last port
            raise ValueError(
                "url must be like https://idv.example:8443/base, without user name, query, fragment"
            )
        if not _VISIBLE.fullmatch(key):
            raise ValueError("key must be one token without spaces")
        self._is_https = match["scheme"].lower() == "https"
        self._host = match["host"].strip("[]")
        self._port = int(match["port"] or (443 if self._is_https else 80))
        self._origin = f"{match['scheme'].lower()}://{match['authority']}"
        self._path = f"{match['path'].rstrip('/')}/api/v1/identify/"
        self._fields = {
            "Host": match["authority"],
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        self._deadline = deadline
        self._traceparent = traceparent
        self._ssl = ssl_context
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._prepare()

    def find(self, identifier: str) -> _FoundT:
        """Return the user with a nickname, written ``@nickname``, or a profile URL.

        ``None`` means that the user does not exist. Raises `ClientError` for everything else.
        """
        return cast("_FoundT", self._run(self._by_input(identifier)))

    def find_card(self, number: str) -> _FoundT:
        """Return the user with a card number, as `find`."""
        return cast("_FoundT", self._run(self._by_card(number)))

    def get(self, identifier: str) -> _UserT:
        """Return the user as `find`; raises `NotFound` if it does not exist."""
        return cast("_UserT", self._run(self._by_input(identifier, must_exist=True)))

    def get_card(self, number: str) -> _UserT:
        """Return the user with a card number, as `get`."""
        return cast("_UserT", self._run(self._by_card(number, must_exist=True)))

    def _prepare(self) -> None:
        """Set attributes of one client alone."""

    @abstractmethod
    def _run(self, call: Coroutine[Any, Any, User | None]) -> Any: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _exchange(
        self, lookup: Lookup, fields: dict[str, str], *, is_new: bool = False
    ) -> User | None:
        """Send a request, with ``is_new`` on a new connection, and read its response."""

    async def _by_input(self, identifier: str, *, must_exist: bool = False) -> User | None:
        nickname = "@" + identifier.removesuffix("/").rpartition("/")[2].removeprefix("@")
        wanted = "nickname", nickname
        return await self._look_up("url", {"input": identifier}, wanted, must_exist=must_exist)

    async def _by_card(self, number: str, *, must_exist: bool = False) -> User | None:
        record = {"card_number": number}
        return await self._look_up("card", record, *record.items(), must_exist=must_exist)

    async def _look_up(
        self, operation: str, record: dict[str, str], wanted: tuple[str, str], *, must_exist: bool
    ) -> User | None:
        until = self._clock() + self._deadline
        body = json.dumps(record).encode()
        path = self._path + operation
        lookup = Lookup(path, body, wanted, lambda: until - self._clock(), must_exist)
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    return await self._attempt(lookup)
                except Undetermined as error:
                    wait = max(error.retry_after or 0.0, pause) * (1 + self._chance() / 4)
                    if error.status not in _RETRIED or wait >= lookup.remaining():
                        raise
                pause *= 2
                await self._pause(wait)
        except ClientError as error:
            error.request_id = lookup.request_id
            raise

    async def _attempt(self, lookup: Lookup) -> User | None:
        traceparent = self._traceparent() if self._traceparent else None
        fields = dict(self._fields)
        if traceparent and _VISIBLE.fullmatch(traceparent):
            fields["traceparent"] = traceparent
        try:
            return await self._exchange(lookup, fields | lookup.next_ids())
        except StaleConnection:  # a lookup changes nothing, so it may be sent again
            return await self._exchange(lookup, fields | lookup.next_ids(), is_new=True)


@dataclass
class Lookup:
    """One lookup with all its attempts.

    Each attempt has an id of its own, so that no response to an earlier one is taken for its own.
    ``wanted`` is the member that a user must have, and its value; ``remaining`` returns seconds.
    """

    path: str
    body: bytes = field(repr=False)
    wanted: tuple[str, str] = field(repr=False)
    remaining: Callable[[], float]
    must_exist: bool = False
    call_id: str = field(default_factory=lambda: os.urandom(16).hex())
    attempts: int = 0

    @property
    def request_id(self) -> str:
        """The id of the present attempt."""
        return f"{self.call_id}-{self.attempts}"

    def next_ids(self) -> dict[str, str]:
        """Begin an attempt; return the header fields with its id."""
        self.attempts += 1
        return dict.fromkeys(_ID_FIELDS, self.request_id)

    def body_length(self, fields: Fields) -> int | None:
        """Return the length of a body that is to be read, ``None`` if the response is discarded.

        Only a response with the id of this request can be one to it, and not a late one to another.
        Its body must have one length, so that a cut one is detected.
        """
        length = fields("content-length", [])
        is_framed = len(length) == 1 and _LENGTH.fullmatch(length[0])
        if not is_framed or fields("transfer-encoding", []) or not self._is_echoed(fields):
            return None
        return int(length[0]) if int(length[0]) <= MAX_BODY else None

    def read(self, status: int, fields: Fields, body: bytes) -> User | None:
        """Return the user of a response, ``None`` if it says that there is none.

        Raises `ClientError` for every other response, and with ``must_exist`` for that one.
        """
        if status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = RateLimited if status == HTTPStatus.TOO_MANY_REQUESTS else Undetermined
            failure = kind(f"the service could not determine the result: status {status}", status)
            wait = "".join(fields("retry-after", []))
            failure.retry_after = float(wait) if _SECONDS.fullmatch(wait) else None
            raise failure
        record = self._record(fields, body)
        code = record.get("code") if record.get("status") == "error" else None
        if status == HTTPStatus.NOT_FOUND and code == "not_found":
            if self.must_exist:
                raise NotFound("the user does not exist", status)
            return None
        if status == HTTPStatus.OK and record.get("status") == "ok":
            return self._user(record)
        if status in _REFUSED and isinstance(code, str) and code != "not_found":
            refusal, message = _REFUSED[status]
            reason = "".join(fields("x-error-reason", []))
            if refusal is not InvalidFormat or not _REASON.fullmatch(reason):
                raise refusal(message, status)
            error = InvalidFormat(f"{message}: {reason}", status)
            error.reason = reason
            raise error
        message = f"status {status} with a response that is not of this service"
        if code == "no_such_route":
            message = "the service has no such path: check its URL"
        elif not self._is_echoed(fields):
            names = ", ".join(fields("server", []) + fields("via", []))
            proxy = f"a proxy ({names[:100]})" if _TEXT.fullmatch(names) else "a proxy"
            message = (
                f"status {status} without the X-Request-ID of the request, and without its"
                f" X-IDV-Request-ID: not this service, or {proxy} has changed both"
            )
        raise Unexpected(message, status)

    def _is_echoed(self, fields: Fields) -> bool:
        return any(fields(name, []) == [self.request_id] for name in _ID_FIELDS)

    def _user(self, record: dict[str, Any]) -> User:
        members: list[Any] = [record.get(name) for name in User.__slots__]
        if not all(isinstance(each, str) for each in members):
            raise Unexpected("a user of the response is incomplete", HTTPStatus.OK)
        user = User(*members)
        name, value = self.wanted
        # The service may fold the case of a nickname, in ASCII: `str.lower` has more letters.
        if getattr(user, name).encode().lower() != value.encode().lower():
            raise Unexpected("the response is for another user than requested", HTTPStatus.OK)
        return user

    def _record(self, fields: Fields, body: bytes) -> dict[str, Any]:
        """Return the JSON object of a response, empty if it has none."""
        types = [each.partition(";")[0].strip() for each in fields("content-type", [])]
        is_plain = types == ["application/json"] and not fields("content-encoding", [])
        if not is_plain or len(body) != self.body_length(fields):
            return {}
        try:
            record = strict_json.loads(body)
        except ValueError:
            return {}
        return record if isinstance(record, dict) else {}
