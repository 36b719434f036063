"""Lookups and the parsing of their responses, without I/O, for both clients."""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

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

Fields = Callable[[str, list[str]], list[str]]
"""A function that returns the values of all header fields with a name, or else a default."""
_ID_FIELDS = ("X-Request-ID", "X-IDV-Request-ID")
"""Header fields with the request id. Services before 1.0 support only the first. If a response has
both, the second counts, because a proxy may have replaced the first."""
_TEXT = re.compile(r"[ -~]+")
_LENGTH = re.compile(r"[1-9][0-9]{0,6}")
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
_REASON = re.compile(r"[a-z_]{1,40}")
_QUOTA = re.compile(r'"[a-z]+";q=([1-9][0-9]{0,8});w=[0-9]+', re.ASCII)
_TEMPORARY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_REFUSED: dict[int, tuple[type[ClientError], str]] = {
    401: (InvalidKey, "the key is not valid"),
    403: (MissingScope, "the key lacks the scope of this lookup"),
    422: (InvalidFormat, "the value has an invalid format"),
}


@dataclass(frozen=True, slots=True)
class User:
    """A user of the service. ``nickname`` begins with ``@``. The repr contains only the plan."""

    plan: str
    card_number: str = field(repr=False)
    nickname: str = field(repr=False)
    profile_url: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class Item:
    """An identifier to look up, and the name of the request member that contains it."""

    member: str
    identifier: str = field(repr=False)

    @property
    def body(self) -> bytes:
        """The JSON object for the request."""
        return json.dumps({self.member: self.identifier}).encode()

    def user(self, record: dict[str, Any]) -> User:
        """Return the user in a JSON record. Raises `Unexpected` for a user other than requested."""
        members: list[Any] = [record.get(name) for name in User.__slots__]
        if not all(isinstance(each, str) for each in members):
            raise Unexpected("a user of the response is incomplete", HTTPStatus.OK)
        user = User(*members)
        wanted, found = self.identifier, user.card_number
        if self.member == "input":
            wanted = "@" + wanted.removesuffix("/").rpartition("/")[2].removeprefix("@")
            found = user.nickname
        # The service may fold the case of nicknames, but only in ASCII, as `bytes.lower` does.
        if found.encode().lower() != wanted.encode().lower():
            raise Unexpected("the response is for a user other than requested", HTTPStatus.OK)
        return user


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one identifier of `find_many` or `find_many_cards`.

    If the user does not exist, ``user`` and ``error`` are ``None``. Otherwise, one of them is set.
    ``degraded`` is true if a backend of the service has failed within the last ten minutes. Without
    a response to a batch, ``degraded`` is ``None``. Services before 1.0 have no batches.
    """

    identifier: str = field(repr=False)
    user: User | None
    error: ClientError | None = None
    degraded: bool | None = None


Found = User | list[Result] | None
"""The content of a response: a user, ``None`` for "not found", or the results of a batch."""


class StaleConnection(Undetermined):
    """A persistent connection was closed without a response. Another connection may work."""


@dataclass
class Lookup:
    """One lookup with all its attempts. ``items`` contains one item, or several in a `Batch`.

    Each attempt has its own request id, so a late response to an earlier attempt is detected.
    ``remaining`` returns the seconds until the deadline.
    """

    max_body: ClassVar = 64 * 1024
    """Maximum size of a response body, in bytes."""
    path: str
    body: bytes = field(repr=False)
    items: list[Item] = field(repr=False)
    must_exist: bool = False
    max_items: int | None = None
    """Maximum batch size, set when the server rejects a batch as too large. 0 means no batches."""
    date: str = ""
    """The value of the ``Date`` field of the response."""
    remaining: Callable[[], float] = field(default=lambda: 0.0)
    call_id: str = field(default_factory=lambda: os.urandom(16).hex())
    attempts: int = 0

    @property
    def request_id(self) -> str:
        """The request id of the current attempt."""
        return f"{self.call_id}-{self.attempts}"

    def next_ids(self) -> dict[str, str]:
        """Begin an attempt. Return the header fields with its request id."""
        self.attempts += 1
        return dict.fromkeys(_ID_FIELDS, self.request_id)

    def body_length(self, fields: Fields) -> int | None:
        """Return the length of the body to read, or ``None`` to discard the response.

        Without the id of this request, the response may belong to another request. Without exactly
        one ``Content-Length``, a truncated body would not be detected. Both kinds are discarded.
        """
        length = fields("content-length", [])
        is_framed = len(length) == 1 and _LENGTH.fullmatch(length[0])
        if not is_framed or fields("transfer-encoding", []) or not self._is_echoed(fields):
            return None
        return int(length[0]) if int(length[0]) <= self.max_body else None

    def read(self, status: int, fields: Fields, body: bytes) -> Found:
        """Return the user in a response, or ``None`` if the user does not exist.

        Raises `ClientError` for every other response. With ``must_exist``, raises `NotFound`
        instead of returning ``None``.
        """
        if status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = RateLimited if status == HTTPStatus.TOO_MANY_REQUESTS else Undetermined
            failure = kind(f"the service could not determine the result: status {status}", status)
            wait = "".join(fields("retry-after", []))
            failure.retry_after = float(wait) if _SECONDS.fullmatch(wait) else None
            raise failure
        record = self._record(fields, body)
        self.date = "".join(fields("date", []))
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
        message = f"status {status}: the response is not from this service"
        if code == "no_such_route":
            message = "the service has no such path: check its URL"
        elif not self._is_echoed(fields):
            names = ", ".join(fields("server", []) + fields("via", []))
            proxy = f"a proxy ({names[:100]})" if _TEXT.fullmatch(names) else "a proxy"
            message = (
                f"status {status}: the response does not repeat the request id; it is not from this"
                f" service, or {proxy} has changed X-Request-ID and X-IDV-Request-ID"
            )
        raise Unexpected(message, status)

    def _is_echoed(self, fields: Fields) -> bool:
        return fields(_ID_FIELDS[1], fields(_ID_FIELDS[0], [])) == [self.request_id]

    def _found(self, record: dict[str, Any]) -> Found:
        return self.items[0].user(record)

    def _record(self, fields: Fields, body: bytes) -> dict[str, Any]:
        """Return the JSON object of a response, or an empty one for any other body."""
        types = [each.partition(";")[0].strip() for each in fields("content-type", [])]
        is_plain = types == ["application/json"] and not fields("content-encoding", [])
        if is_plain and len(body) == self.body_length(fields):
            with suppress(ValueError):
                record = strict_json.loads(body)
                return record if isinstance(record, dict) else {}
        return {}


class Batch(Lookup):
    """A lookup of many items. The response contains a record for each item."""

    max_body = 1024 * 1024

    def read(self, status: int, fields: Fields, body: bytes) -> Found:
        code = None if status == HTTPStatus.OK else self._record(fields, body).get("code")
        quota = _QUOTA.fullmatch("".join(fields("ratelimit-policy", [])))
        if code == "no_such_route":  # services before 1.0 have no batches
            self.max_items = 0
        elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # of the service or of a proxy
            if len(self.items) == 1:
                raise InvalidFormat("the value is too long", status)
            self.max_items = len(self.items) // 2
        elif code == "rate_limited" and quota and int(quota[1]) < len(self.items):
            self.max_items = int(quota[1])
        return super().read(status, fields, body)

    def _found(self, record: dict[str, Any]) -> Found:
        records, degraded = record.get("results"), record.get("degraded") is not False
        if not isinstance(records, list) or len(records) != len(self.items):
            raise Unexpected("the numbers of results and items differ", HTTPStatus.OK)
        pairs = zip(self.items, records, strict=True)
        return [self._result(item, each, degraded=degraded) for item, each in pairs]

    def _result(self, item: Item, record: object, *, degraded: bool) -> Result:
        try:
            user = self._user_of(item, record if isinstance(record, dict) else {})
            return Result(item.identifier, user, None, degraded)
        except ClientError as error:
            error.request_id = self.request_id
            return Result(item.identifier, None, error, degraded)

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
        raise Unexpected("a result in the response is not from this service", HTTPStatus.OK)
