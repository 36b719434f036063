"""The base class of both clients, with their requests and retries, without I/O."""

import random
import re
import ssl
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Generic, TypeVar, cast

from tornado_idv.client.errors import ClientError, InvalidFormat, Undetermined
from tornado_idv.client.lookup import Batch, Found, Item, Lookup, Result, StaleConnection, User

_FoundT = TypeVar("_FoundT")
_UserT = TypeVar("_UserT")
MAX_IDLE_TIME = 5.0
"""Maximum idle time of a persistent connection, in seconds. The service closes it after 10 s."""
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<authority>(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?)(?P<path>(?:/[!-\"$->@-~]*)?)",
    re.ASCII | re.IGNORECASE,
)
_VISIBLE = re.compile(r"[!-~]+")
_OPERATIONS = {"input": "url", "card_number": "card"}
_FIRST_PAUSE = 0.1
_MAX_REQUEST = 15_000
"""Maximum size of a batch request, in bytes. The service accepts 16 KiB by default."""
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class BaseClient(Generic[_FoundT, _UserT]):
    """Base class of both clients. In `AsyncClient`, the methods return awaitables.

    ``deadline`` is the maximum time of a call with all its attempts, in seconds. For each attempt,
    ``traceparent`` returns the header field ``traceparent``, or ``None``. ``clock``, ``sleep`` and
    ``chance`` are for tests. Raises `ValueError` for an invalid ``url`` or ``key``.

    A call is a coroutine of this class. A subclass implements `_exchange`, and `_run`, which runs
    this coroutine. In `Client`, the coroutine never suspends.
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
                "url must be like https://idv.example:8443/base, without user, query or fragment"
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
        self._max_items = 100
        self.date = ""
        """The ``Date`` field of the last response of the service."""
        self._prepare()

    def find(self, identifier: str) -> _FoundT:
        """Return the user with this ``@nickname`` or profile URL.

        Returns ``None`` only if the user does not exist. Raises `ClientError` in all other cases.
        """
        return cast("_FoundT", self._run(self._find(Item("input", identifier))))

    def find_card(self, number: str) -> _FoundT:
        """Return the user with this card number, or ``None`` as `find` does."""
        return cast("_FoundT", self._run(self._find(Item("card_number", number))))

    def get(self, identifier: str) -> _UserT:
        """Return the user as `find` does. Raises `NotFound` if the user does not exist."""
        return cast("_UserT", self._run(self._find(Item("input", identifier), must_exist=True)))

    def get_card(self, number: str) -> _UserT:
        """Return the user with this card number. Raises `NotFound` as `get` does."""
        return cast("_UserT", self._run(self._find(Item("card_number", number), must_exist=True)))

    def _batches(self, member: str, identifiers: Iterable[str]) -> Iterator[list[Item]]:
        """Yield the items in batches that fit into a request."""
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
        if self._max_items == 0:
            return [await self._find_item(each) for each in items]
        body = b'{"items":[%b]}' % b",".join([each.body for each in items])
        lookup = Batch(f"{self._path}batch", body, items)
        try:
            return cast("list[Result]", await self._look_up(lookup))
        except ClientError as error:
            size = lookup.max_items
            if size is not None:
                self._max_items = size
            elif isinstance(error, InvalidFormat) and len(items) > 1:
                # The service rejects a whole batch for one item that is not valid text. Single
                # lookups determine this item.
                size = 1
            else:
                return [Result(each.identifier, None, error) for each in items]
        step = size or len(items)
        parts = [items[i : i + step] for i in range(0, len(items), step)]
        return [each for part in parts for each in await self._find_batch(part)]

    async def _find_item(self, item: Item) -> Result:
        try:
            return Result(item.identifier, await self._find(item))
        except ClientError as error:
            return Result(item.identifier, None, error)

    def _prepare(self) -> None:
        """Initialize the attributes of a subclass."""

    @abstractmethod
    def _run(self, call: Coroutine[Any, Any, Any]) -> Any: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _exchange(self, lookup: Lookup, fields: dict[str, str], *, is_new: bool) -> Found:
        """Send a request and read its response. With ``is_new``, use a new connection."""

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
                    is_retried = error.status in _RETRIED and lookup.max_items is None
                    if not is_retried or wait >= lookup.remaining():
                        raise
                pause *= 2
                await self._pause(wait)
        except ClientError as error:
            error.request_id = lookup.request_id
            raise
        finally:
            self.date = lookup.date or self.date

    async def _attempt(self, lookup: Lookup) -> Found:
        traceparent = self._traceparent() if self._traceparent else None
        fields = dict(self._fields)
        if traceparent and _VISIBLE.fullmatch(traceparent):
            fields["traceparent"] = traceparent
        try:
            return await self._exchange(lookup, fields | lookup.next_ids(), is_new=False)
        except StaleConnection:  # safe to repeat: a lookup changes nothing
            return await self._exchange(lookup, fields | lookup.next_ids(), is_new=True)
