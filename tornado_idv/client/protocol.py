"""Requests, responses and pauses of the client, without I/O."""

from __future__ import annotations

import json
import os
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

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
MAX_BODY = 64 * 1024
"""Bytes of a response body that are read."""
_VISIBLE = re.compile(r"[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
_FIRST_PAUSE = 0.1
_RETRIED = (429, 503)
_REFUSED: dict[int, tuple[str, type[ClientError], str]] = {
    401: ("token_invalid_or_expired", InvalidKey, "the key is not valid"),
    403: ("insufficient_scope", MissingScope, "the key lacks the scope of this lookup"),
    422: ("invalid_format", InvalidFormat, "the value is in no valid format"),
}


class User(NamedTuple):
    """A user; ``nickname`` begins with ``@``. Its repr shows the plan alone."""

    plan: str
    card_number: str
    nickname: str
    profile_url: str = ""

    def __repr__(self) -> str:
        return f"User(plan={self.plan!r})"


class Response(NamedTuple):
    """A response whose body is complete; names of header fields are in lower case."""

    status: int
    fields: Mapping[str, str]
    body: bytes


class BaseClient(Generic[_FoundT, _UserT]):
    """Arguments and methods of both clients; those of `AsyncClient` return awaitables.

    ``deadline`` bounds a call with all its attempts, in seconds. ``traceparent`` is called for each
    attempt and returns the value of that header field, or ``None``. Raises `ValueError` for an
    invalid ``url`` or ``key``.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        deadline: float = 2.0,
        traceparent: Callable[[], str | None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._url = parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("url must be like https://idv.example:8443, without a user name")
        if parts.query or parts.fragment:
            raise ValueError("url must have no query and no fragment")
        if not _VISIBLE.fullmatch(key):
            raise ValueError("key must be one token without spaces")
        self._path = f"{parts.path.rstrip('/')}/api/v1/identify/"
        self._key = key
        self._deadline = deadline
        self._traceparent = traceparent
        self._ssl = ssl_context

    def find(self, identifier: str) -> _FoundT:
        """Return the user with a nickname, written ``@nickname``, or a profile URL.

        ``None`` means that the user does not exist. Raises `ClientError` for everything else.
        """
        return self._find(self._by_input(identifier))

    def find_card(self, number: str) -> _FoundT:
        """Return the user with a card number, as `find`."""
        return self._find(self._by_card(number))

    def get(self, identifier: str) -> _UserT:
        """Return the user as `find`; raises `NotFound` if it does not exist."""
        return self._get(self._by_input(identifier))

    def get_card(self, number: str) -> _UserT:
        """Return the user with a card number, as `get`."""
        return self._get(self._by_card(number))

    @abstractmethod
    def _find(self, lookup: Lookup) -> _FoundT: ...

    @abstractmethod
    def _get(self, lookup: Lookup) -> _UserT: ...

    def _by_input(self, identifier: str) -> Lookup:
        nickname = "@" + identifier.removesuffix("/").rpartition("/")[2].removeprefix("@")
        body = json.dumps({"input": identifier}).encode()
        return Lookup(f"{self._path}url", body, nickname=nickname)

    def _by_card(self, number: str) -> Lookup:
        body = json.dumps({"card_number": number}).encode()
        return Lookup(f"{self._path}card", body, card_number=number)

    def _fields(self, lookup: Lookup) -> dict[str, str]:
        """Return the header fields of an attempt."""
        fields = {
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "X-Request-ID": lookup.request_id,
        }
        traceparent = self._traceparent() if self._traceparent else None
        if traceparent and _VISIBLE.fullmatch(traceparent):
            fields["traceparent"] = traceparent
        return fields


class Lookup:
    """One lookup with all its attempts; ``request_id`` is the same in each."""

    def __init__(self, path: str, body: bytes, **wanted: str) -> None:
        self.path = path
        self.body = body
        self.request_id = os.urandom(16).hex()
        self._wanted = wanted
        self._pause = _FIRST_PAUSE

    def read(self, response: Response) -> User | None:
        """Return the user of a response, ``None`` if it says that there is none.

        Raises `ClientError` for every other response.
        """
        status, record = response.status, _record(response)
        code = record.get("code") if record.get("status") == "error" else None
        if status in _RETRIED or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _failure(response)
        if status in _REFUSED and code == _REFUSED[status][0]:
            _, kind, message = _REFUSED[status]
            error = kind(message, status)
            if isinstance(error, InvalidFormat):
                error.reason = response.fields.get("x-error-reason")
            raise error
        is_for_this = response.fields.get("x-request-id") == self.request_id
        if status == HTTPStatus.NOT_FOUND and code == "not_found" and is_for_this:
            return None
        if status == HTTPStatus.OK and record.get("status") == "ok" and is_for_this:
            return self._user(record)
        message = f"status {status} with a body that is not of this service"
        if code == "no_such_route":
            message = "the service has no such path: check its URL"
        elif record and not is_for_this:
            message = "the response has another X-Request-ID than the request"
        raise Unexpected(message, status)

    def require(self, user: User | None) -> User:
        """Return the user of this lookup; raises `NotFound` if there is none."""
        if user is None:
            raise self.named(NotFound("the user does not exist", HTTPStatus.NOT_FOUND))
        return user

    def named(self, error: ClientError) -> ClientError:
        """Return an error with the request id of this lookup."""
        error.request_id = self.request_id
        return error

    def pause(self, error: Undetermined, remaining: float) -> float:
        """Return the seconds before the next attempt; raise ``error`` if there is none."""
        if error.status not in _RETRIED:
            raise error
        pause = error.retry_after or self._pause * (0.5 + random.random() / 2)  # noqa: S311
        self._pause *= 2
        if pause >= remaining:
            raise error
        return pause

    def _user(self, record: Mapping[str, Any]) -> User:
        members = [record.get(name) for name in ("plan", "card_number", "nickname", "profile_url")]
        texts = [each for each in members if isinstance(each, str)]
        if len(texts) != len(members):
            raise Unexpected("a user of the response is incomplete", 200)
        user = User(*texts)
        # Case does not distinguish: the service may fold it.
        if any(getattr(user, name).lower() != text.lower() for name, text in self._wanted.items()):
            raise Unexpected("the response is for another user than requested", 200)
        return user


def _failure(response: Response) -> Undetermined:
    status = response.status
    kind = RateLimited if status == HTTPStatus.TOO_MANY_REQUESTS else Undetermined
    error = kind(f"the service could not determine the result: status {status}", status)
    wait = response.fields.get("retry-after", "")
    error.retry_after = float(wait) if _SECONDS.fullmatch(wait) else None
    return error


def _record(response: Response) -> dict[str, Any]:
    """Return the JSON object of a response, empty if it has none."""
    media_type = response.fields.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" or "content-encoding" in response.fields:
        return {}
    try:
        record = json.loads(response.body.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _without_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(members)
    if len(record) != len(members):
        raise ValueError("duplicate member")
    return record
