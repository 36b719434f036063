"""What is asked: the request for one kind of query.

It knows nothing of connections and credentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from idv_upstream import places
from idv_upstream.documents import MAX_DEPTH, is_unicode
from idv_upstream.templates import Filling, Placeholders
from tornado_idv import Broken, ByNickname, Query, strict_json

_METHOD = re.compile("(?!(?:CONNECT|TRACE)$)[A-Z]{1,20}")
_SAFE_METHODS = ("GET", "HEAD")


class Asking(NamedTuple):
    """One request, ready to be sent.

    ``url`` is encoded; it is absolute, or a path to be put behind an endpoint. What is
    ``repeatable`` may be sent twice without harm.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool


class RequestOptions(BaseModel):
    """The request that asks for one user."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )
    placeholders: ClassVar[Sequence[str]]
    """The names of the placeholders."""

    method: str = ""
    """The method, in capitals; ``GET`` unless set, or ``POST`` for a request with a body."""
    url: str
    """A path that begins with a slash, behind ``base_url`` or the endpoint; or a whole URL.
    Placeholders may stand behind the host."""
    query: dict[str, str] = {}
    """Query parameters, beside those in ``url``."""
    headers: dict[str, str] = {}
    """Headers, beside those that every request has."""
    json_body: Any = Field(default=None, alias="json")
    """The body as JSON: a mapping or list of texts, or a text that is JSON itself."""
    form: dict[str, str] | None = None
    """The body as a form, instead of JSON."""
    repeatable: bool | None = None
    """Whether it may be sent again if no answer came; true for ``GET`` and ``HEAD`` unless set."""

    @property
    def is_absolute(self) -> bool:
        """Whether it is asked without an endpoint."""
        return not self.url.startswith("/")

    @field_validator("method")
    @classmethod
    def _method_can_be_sent(cls, method: str) -> str:
        if not _METHOD.fullmatch(method):
            raise ValueError("not a method that can be sent; write it in capitals, like POST")
        return method

    @field_validator("url")
    @classmethod
    def _url_can_be_filled(cls, url: str) -> str:
        places.target(url, cls.known())
        places.url_parameters(url, cls.known())
        return url

    @field_validator("query", "form")
    @classmethod
    def _members_can_be_filled(cls, members: dict[str, str] | None) -> dict[str, str] | None:
        _check(places.parameters, _one_by_one(members or {}), cls.known())
        return members

    @field_validator("headers")
    @classmethod
    def _headers_can_be_filled(cls, headers: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("a header is written twice; upper and lower case are the same")
        _check(places.headers, _one_by_one(headers), cls.known())
        return headers

    @field_validator("json_body")
    @classmethod
    def _json_can_be_filled(cls, body: Any) -> Any:
        _check(_json, [body], cls.known())
        return body

    @field_validator("form")
    @classmethod
    def _is_the_only_body(cls, form: Any, info: ValidationInfo) -> Any:
        if form is not None and info.data.get("json_body") is not None:
            raise ValueError("a request has one body; write either json or form")
        return form

    @model_validator(mode="after")
    def _asks_for_somebody(self) -> Self:
        asked = [name for name in self.placeholders if name != "profile_site"]
        if not Template(self, self.known()).names.intersection(asked):
            raise ValueError(f"asks the same for everybody; write {{{asked[0]}}} somewhere in it")
        return self

    @classmethod
    def known(cls, **fixed: str) -> Placeholders:
        """The placeholders that this kind of request has; ``fixed`` are values known now."""
        return Placeholders(cls.placeholders, fixed)


class NicknameRequest(RequestOptions):
    """The request that asks for the user with a nickname."""

    placeholders: ClassVar[Sequence[str]] = ("nickname", "profile_site", "profile_url")


class CardRequest(RequestOptions):
    """The request that asks for the user with a card number."""

    placeholders: ClassVar[Sequence[str]] = ("card_number", "profile_site")


class Template:
    """A request ready to be filled with what is asked for."""

    def __init__(self, options: RequestOptions, known: Placeholders) -> None:
        self._site = known.fixed.get("profile_site", "")
        self._target = places.target(options.url, known)
        parameters = places.url_parameters(options.url, known)
        parameters += places.parameters(options.query, known)
        self._query = places.ampersands("?", parameters) if parameters else None
        self._body = _body(options, known)
        self._headers = _headers(options, known)
        self._constant = _constant(self._headers)
        self._method = options.method or ("GET" if self._body is None else "POST")
        safe = self._method in _SAFE_METHODS
        self._repeatable = safe if options.repeatable is None else options.repeatable

    @classmethod
    def of(cls, options: RequestOptions, profile_site: str) -> Template:
        """The request that ``options`` describe; ``profile_site`` is the first one's prefix."""
        return cls(options, options.known(profile_site=profile_site))

    @property
    def names(self) -> frozenset[str]:
        """The placeholders it has."""
        fillings = [self._target, self._query, self._body, *self._headers.values()]
        return frozenset[str]().union(*(each.names for each in fillings if each is not None))

    def asking(self, query: Query) -> Asking:
        """The request that asks for ``query``.

        Raises `Broken` if what is asked for cannot stand where its placeholder does.
        """
        values = self._values(query)
        url = self._target.filled(values)
        if places.has_dot_segment(url):
            raise Broken(
                "what is asked for cannot be a part of a path", counts_against_breaker=False
            )
        if self._query is not None:
            url += self._query.filled(values)
        return Asking(
            self._method,
            url,
            self._filled_headers(values) if self._constant is None else self._constant,
            None if self._body is None else self._body.filled(values).encode(),
            self._repeatable,
        )

    def _values(self, query: Query) -> dict[str, str]:
        if isinstance(query, ByNickname):
            asked = query.nickname
            values = {"nickname": asked, "profile_url": f"{self._site}/m/{asked}"}
        else:
            asked = query.card_number
            values = {"card_number": asked}
        if not asked or not is_unicode(asked):
            raise Broken("what is asked for cannot be sent", counts_against_breaker=False)
        return values

    def _filled_headers(self, values: Mapping[str, str]) -> Mapping[str, str]:
        headers = {name: filling.filled(values) for name, filling in self._headers.items()}
        if not all(map(places.is_header_value, headers.values())):
            raise Broken(
                "what is asked for cannot be a part of a header", counts_against_breaker=False
            )
        return headers


def _body(options: RequestOptions, known: Placeholders) -> Filling | None:
    if options.form is not None:
        return places.ampersands("", places.parameters(options.form, known))
    if options.json_body is not None:
        return _json(options.json_body, known)
    return None


def _json(body: Any, known: Placeholders) -> Filling:
    if not isinstance(body, str):
        return places.json_document(body, known)
    try:
        document = strict_json.loads(body, max_depth=MAX_DEPTH)
    except ValueError:
        raise ValueError(
            "not JSON; write a mapping, a list, or JSON within single quotes"
        ) from None
    return places.json_document(document, known)


def _headers(options: RequestOptions, known: Placeholders) -> dict[str, Filling]:
    headers = places.headers(options.headers, known)
    kind = "application/x-www-form-urlencoded" if options.json_body is None else "application/json"
    has_body = options.json_body is not None or options.form is not None
    if has_body and "content-type" not in map(str.lower, headers):
        headers["Content-Type"] = Filling(kind)
    return headers


def _constant(headers: Mapping[str, Filling]) -> Mapping[str, str] | None:
    """The headers, if they are the same whatever is asked for."""
    if any(filling.names for filling in headers.values()):
        return None
    return {name: filling.filled({}) for name, filling in headers.items()}


def _one_by_one(members: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    return ({name: text} for name, text in members.items())


def _check(
    make: Callable[[Any, Placeholders], object], parts: Iterable[Any], known: Placeholders
) -> None:
    """Tells all parts that cannot be made ready, each with its place."""
    problems = []
    for part in parts:
        try:
            make(part, known)
        except places.Misplaced as wrong:
            error = PydanticCustomError("value_error", "{error}", {"error": str(wrong)})
            problems.append(InitErrorDetails(type=error, loc=wrong.steps, input=None))
    if problems:
        raise ValidationError.from_exception_data("request", problems)
