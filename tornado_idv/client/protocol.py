"""Requests, attempts and responses of both clients, without I/O."""

from __future__ import annotations

import json
import os
import random
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

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
_LENGTH = re.compile(r"[1-9][0-9]{0,6}")
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
_REASON = re.compile(r"[a-z_]{1,40}")
_QUOTA = re.compile(r'"[a-z]+";q=([1-9][0-9]{0,8});w=[0-9]+', re.ASCII)
_OPERATIONS = {"input": "url", "card_number": "card"}
_FIRST_PAUSE = 0.1
_MAX_ITEMS = 100
_MAX_REQUEST = 15_000
"""Bytes of the body of a batch: the service accepts 16 KiB by default."""
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


@dataclass(frozen=True, slots=True)
class Item:
    """An identifier that is looked up, and the member of a request that has it."""

    member: str
    identifier: str = field(repr=False)

    @property
    def body(self) -> bytes:
        """The JSON object with it."""
        return json.dumps({self.member: self.identifier}).encode()

    def user(self, record: dict[str, Any]) -> User:
        """Return the user of a record; raises `Unexpected` unless it is the one looked up."""
        members: list[Any] = [record.get(name) for name in User.__slots__]
        if not all(isinstance(each, str) for each in members):
            raise Unexpected("a user of the response is incomplete", HTTPStatus.OK)
        user = User(*members)
        wanted, found = self.identifier, user.card_number
        if self.member == "input":
            wanted = "@" + wanted.removesuffix("/").rpartition("/")[2].removeprefix("@")
            found = user.nickname
        # The service may fold the case of a nickname, in ASCII: `str.lower` has more letters.
        if found.encode().lower() != wanted.encode().lower():
            raise Unexpected("the response is for another user than requested", HTTPStatus.OK)
        return user


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one of many identifiers.

    The user does not exist if ``user`` and ``error`` are both ``None``, and in no other case.
    ``degraded`` is whether a backend of the service has failed within ten minutes before.
    """

    identifier: str = field(repr=False)
    user: User | None
    error: ClientError | None = None
    degraded: bool = False


Found = User | list[Result] | None
"""What a response says: a user or none, or the results of a batch."""


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
        self._max_items = _MAX_ITEMS
        self._prepare()

    def find(self, identifier: str) -> _FoundT:
        """Return the user with a nickname, written ``@nickname``, or a profile URL.

        ``None`` means that the user does not exist. Raises `ClientError` for everything else.
        """
        return cast("_FoundT", self._run(self._find(Item("input", identifier))))

    def find_card(self, number: str) -> _FoundT:
        """Return the user with a card number, as `find`."""
        return cast("_FoundT", self._run(self._find(Item("card_number", number))))

    def get(self, identifier: str) -> _UserT:
        """Return the user as `find`; raises `NotFound` if it does not exist."""
        return cast("_UserT", self._run(self._find(Item("input", identifier), must_exist=True)))

    def get_card(self, number: str) -> _UserT:
        """Return the user with a card number, as `get`."""
        return cast("_UserT", self._run(self._find(Item("card_number", number), must_exist=True)))

    def _batches(self, member: str, identifiers: Iterable[str]) -> Iterator[list[Item]]:
        """Yield as many items at a time as a request may have."""
        batch: list[Item] = []
        size = 0
        for each in identifiers:
            item = Item(member, each)
            if batch and (len(batch) >= self._max_items or size + len(item.body) > _MAX_REQUEST):
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += len(item.body) + 1
        if batch:
            yield batch

    async def _find_batch(self, items: list[Item]) -> list[Result]:
        if self._max_items == 1:
            return [await self._find_item(each) for each in items]
        body = b'{"items":[%b]}' % b",".join([each.body for each in items])
        lookup = Batch(f"{self._path}batch", body, items)
        try:
            return cast("list[Result]", await self._look_up(lookup))
        except ClientError as error:
            if isinstance(error, InvalidFormat):  # by an item that is not even valid text
                return [await self._find_item(each) for each in items]
            if lookup.max_items == 0:
                return [Result(each.identifier, None, error) for each in items]
        self._max_items = size = lookup.max_items
        return [*await self._find_batch(items[:size]), *await self._find_batch(items[size:])]

    async def _find_item(self, item: Item) -> Result:
        try:
            return Result(item.identifier, await self._find(item))
        except ClientError as error:
            return Result(item.identifier, None, error)

    def _prepare(self) -> None:
        """Set attributes of one client alone."""

    @abstractmethod
    def _run(self, call: Coroutine[Any, Any, Any]) -> Any: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _exchange(
        self, lookup: Lookup, fields: dict[str, str], *, is_new: bool = False
    ) -> Found:
        """Send a request, with ``is_new`` on a new connection, and read its response."""

    async def _find(self, item: Item, *, must_exist: bool = False) -> User | None:
        path = self._path + _OPERATIONS[item.member]
        user = await self._look_up(Lookup(path, item.body, [item], must_exist))
        return cast("User | None", user)

    async def _look_up(self, lookup: Lookup) -> Found:
        until = self._clock() + self._deadline
        lookup.remaining = lambda: until - self._clock()
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    return await self._attempt(lookup)
                except Undetermined as error:
                    wait = max(error.retry_after or 0.0, pause) * (1 + self._chance() / 4)
                    is_retried = error.status in _RETRIED and lookup.max_items == 0
                    if not is_retried or wait >= lookup.remaining():
                        raise
                pause *= 2
                await self._pause(wait)
        except ClientError as error:
            error.request_id = lookup.request_id
            raise

    async def _attempt(self, lookup: Lookup) -> Found:
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
    """One lookup with all its attempts; ``items`` has the one that is looked up.

    Each attempt has an id of its own, so that no response to an earlier one is taken for its own.
    ``remaining`` returns seconds.
    """

    max_body: ClassVar = 64 * 1024
    """Bytes of a response body that are read."""
    path: str
    body: bytes = field(repr=False)
    items: list[Item] = field(repr=False)
    must_exist: bool = False
    max_items: int = 0
    """Of a batch of so many at most, if a response says that this one is too large."""
    remaining: Callable[[], float] = field(default=lambda: 0.0)
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
        return int(length[0]) if int(length[0]) <= self.max_body else None

    def read(self, status: int, fields: Fields, body: bytes) -> Found:
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
        if status == HTTPStatus.NOT_FOUND and code == "not_found" and not isinstance(self, Batch):
            if self.must_exist:
                raise NotFound("the user does not exist", status)
            return None
        if status == HTTPStatus.OK and record.get("status") == "ok":
            return self._found(record)
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

    def _found(self, record: dict[str, Any]) -> Found:
        return self.items[0].user(record)

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


class Batch(Lookup):
    """A lookup of many items, whose response has a record for each."""

    max_body = 1024 * 1024

    def read(self, status: int, fields: Fields, body: bytes) -> Found:
        code = None if status == HTTPStatus.OK else self._record(fields, body).get("code")
        quota = _QUOTA.fullmatch("".join(fields("ratelimit-policy", [])))
        if code == "no_such_route":  # of an older service
            self.max_items = 1
        elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # of a proxy, too
            self.max_items = max(1, len(self.items) // 2)
        elif code == "rate_limited" and quota and int(quota[1]) < len(self.items):
            self.max_items = int(quota[1])
        return super().read(status, fields, body)

    def _found(self, record: dict[str, Any]) -> Found:
        records, degraded = record.get("results"), record.get("degraded")
        if not isinstance(records, list) or len(records) != len(self.items):
            raise Unexpected("the response has not one result for each item", HTTPStatus.OK)
        return [
            self._result(item, each, degraded=degraded is not False)
            for item, each in zip(self.items, records, strict=True)
        ]

    def _result(self, item: Item, record: object, *, degraded: bool) -> Result:
        user, error = None, None
        try:
            user = self._user_of(item, record if isinstance(record, dict) else {})
        except ClientError as failure:
            failure.request_id = self.request_id
            error = failure
        return Result(item.identifier, user, error, degraded)

    def _user_of(self, item: Item, record: dict[str, Any]) -> User | None:
        code = record.get("code") if record.get("status") == "error" else None
        if record.get("status") == "ok":
            return item.user(record)
        if code == "not_found":
            return None
        if code == "insufficient_scope":
            raise MissingScope(_REFUSED[403][1])
        if code == "invalid_format":
            raise InvalidFormat(_REFUSED[422][1])
        if isinstance(code, str):
            raise Undetermined(f"the service could not determine the result: {code}")
        raise Unexpected("a result of the response is not of this service", HTTPStatus.OK)
