"""The service's own protocol, seen from the asking side.

Pure: it says what to send for a query, and what an answer means. It knows nothing
of connections, and no error raised here holds anything of what was asked or answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from tornado_idv import Broken, ByNickname, Query, Unavailable, User

MAX_ANSWER = 64 * 1024
"""The most bytes of an answer that are read; a longer one is `Broken`."""

_READ = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


def question(query: Query) -> tuple[str, dict[str, str]]:
    """The path below the base URL and the JSON object that ask for ``query``."""
    if isinstance(query, ByNickname):
        return "/api/v1/identify/url", {"input": f"@{query.nickname}"}
    return "/api/v1/identify/card", {"card_number": query.card_number}


def check_head(status: int, headers: Mapping[str, str]) -> None:
    """Refuses an answer whose body need not be read: raises `Unavailable` or `Broken`."""
    if status in _REFUSED:
        raise Broken(f"our credentials are refused (status {status})")
    if status in _NOT_NOW or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unavailable(f"cannot answer now (status {status})")
    if status not in _READ:
        raise Broken(f"an answer of status {status}, which means nothing here")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Broken("a compressed answer, though none was asked for")
    media_type = headers.get("Content-Type", "").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise Broken(f"an answer of status {status} that is not application/json")


def read(query: Query, status: int, body: bytes) -> User | None:
    """Reads the body of an answer that `check_head` let pass.

    Raises `Broken` unless it is the record of the user asked for, or the record
    that says there is none.
    """
    record = _decode(body)
    try:
        if status == HTTPStatus.OK:
            return _asked_for(query, _Found.model_validate(record))
        _NotFound.model_validate(record)
    except ValidationError as error:
        # The error's own text holds the answer: only where it is wrong may be told.
        names = _members(error)
        raise Broken(f"an answer of status {status} with a wrong record: {names}") from None
    return None


def _is_unicode(text: str) -> str:
    text.encode()  # JSON can escape half a surrogate pair, which no encoder of ours can write
    return text


_Text = Annotated[str, AfterValidator(_is_unicode)]


class _Record(BaseModel):
    """Unknown members are let pass, so that an older service can ask a newer one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)


class _Found(_Record):
    status: Literal["ok"]
    plan: _Text
    card_number: Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]
    nickname: Annotated[str, StringConstraints(pattern=r"^@[!-~]+$")]
    profile_url: Annotated[_Text, StringConstraints(min_length=1)]


class _NotFound(_Record):
    status: Literal["error"]
    code: Literal["not_found"]


def _asked_for(query: Query, found: _Found) -> User:
    nickname = found.nickname.removeprefix("@")
    if isinstance(query, ByNickname):
        same = nickname == query.nickname
    else:
        same = found.card_number == query.card_number
    if not same:
        raise Broken("another user than asked for")
    return User(found.plan, found.card_number, nickname, found.profile_url)


def _members(error: ValidationError) -> str:
    members = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
    return ", ".join(sorted(members)) or "no object"


def _decode(body: bytes) -> Any:
    """Reads strict JSON in UTF-8; nesting without end is refused like any other error."""
    try:
        return json.loads(
            body.decode("utf-8"), object_pairs_hook=_named_once, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise Broken("an answer that is not valid JSON") from None


def _named_once(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is named twice")
    return members


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")
