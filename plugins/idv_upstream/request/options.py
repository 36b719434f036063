"""The options ``by_nickname`` and ``by_card``: how a request is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from idv_upstream.request import encoding
from idv_upstream.request.encoding import Compiled, Placeholders
from idv_upstream.request.template import RequestTemplate
from tornado_idv import Options

_METHOD = re.compile("(?!(?:CONNECT|TRACE)$)[A-Z]{1,20}")
_ONE = re.compile(
    r"""\b(?:top|limit|count|rows|first|max(?:_?results)?|(?:page)?_?size|per_?page)"?\s*[=:]\s*"?1\b""",
    re.IGNORECASE,
)
_SAFE_METHODS = ("GET", "HEAD")


class RequestOptions(Options):
    """The request for one user."""

    placeholders: ClassVar[Sequence[str]]
    """The names of the placeholders."""

    method: str = ""
    """The method, in capitals; ``GET`` unless set, or ``POST`` for a request with a body."""
    url: str
    """A path that begins with a slash, below ``base_url`` or the endpoint; or a complete URL.
    Placeholders may stand behind the host."""
    query: dict[str, str] = Field(default_factory=dict)
    """Query parameters, beside those in ``url``."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers, beside those that every request has."""
    json_body: Any = Field(default=None, alias="json")
    """The body as JSON: a mapping or list of strings, or a string that is JSON itself."""
    form: dict[str, str] | None = None
    """The body as a form, instead of JSON."""
    repeatable: bool | None = None
    """Whether it may be sent again if no response came; true for ``GET`` and ``HEAD`` unless
    set."""

    @property
    def is_absolute(self) -> bool:
        """Return whether it is sent without an endpoint."""
        return not self.url.startswith("/")

    @property
    def is_for_one(self) -> bool:
        """Return whether it seems to limit the response to one user."""
        parameters = {**self.query, **(self.form or {})}
        texts = [self.url, *(f"{name}={value}" for name, value in parameters.items())]
        return any(map(_ONE.search, [*texts, json.dumps(self.json_body).replace("\\", "")]))

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        if not _METHOD.fullmatch(method):
            raise ValueError("not a method that can be sent; write it in capitals, like POST")
        return method

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        known = Placeholders(cls.placeholders)
        encoding.compile_path(url, known)
        encoding.compile_url_query(url, known)
        return url

    @field_validator("query", "form")
    @classmethod
    def _check_parameters(cls, members: dict[str, str] | None) -> dict[str, str] | None:
        cls._check(encoding.compile_parameters, _one_by_one(members or {}))
        return members

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("duplicate header (names are case-insensitive)")
        cls._check(encoding.compile_headers, _one_by_one(headers))
        return headers

    @field_validator("json_body")
    @classmethod
    def _check_json(cls, body: Any) -> Any:
        cls._check(encoding.compile_json, [body])
        return body

    @field_validator("form")
    @classmethod
    def _check_single_body(cls, form: Any, info: ValidationInfo) -> Any:
        if form is not None and info.data.get("json_body") is not None:
            raise ValueError("a request has one body; write either json or form")
        return form

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.template("x").is_constant:
            name = self.placeholders[0]
            raise ValueError(f"the same for all users; write {{{name}}} somewhere in it")
        return self

    @classmethod
    def _check(
        cls, compile_part: Callable[[Any, Placeholders], object], parts: Iterable[Any]
    ) -> None:
        """Report every part that cannot be compiled, each with its location."""
        problems = []
        for part in parts:
            try:
                compile_part(part, Placeholders(cls.placeholders))
            except encoding.TemplateError as error:
                kind = PydanticCustomError("value_error", "{error}", {"error": str(error)})
                problems.append(InitErrorDetails(type=kind, loc=error.steps, input=None))
        if problems:
            raise ValidationError.from_exception_data("request", problems)

    def template(self, profile_site: str) -> RequestTemplate:
        """Compile the request; ``profile_site`` is the prefix of the first profile site."""
        known = Placeholders(self.placeholders, profile_site)
        parameters = encoding.compile_url_query(self.url, known)
        parameters += encoding.compile_parameters(self.query, known)
        body = self._body(known)
        headers = self._headers(known)
        constants = {name: each.render("") for name, each in headers.items() if not each.slots}
        method = self.method or ("GET" if body is None else "POST")
        return RequestTemplate(
            method=method,
            path=encoding.compile_path(self.url, known),
            query=encoding.join_parameters("?", parameters) if parameters else None,
            headers={name: each for name, each in headers.items() if each.slots},
            constant_headers=constants,
            body=body,
            repeatable=method in _SAFE_METHODS if self.repeatable is None else self.repeatable,
        )

    def _body(self, known: Placeholders) -> Compiled | None:
        if self.form is not None:
            return encoding.join_parameters("", encoding.compile_parameters(self.form, known))
        return None if self.json_body is None else encoding.compile_json(self.json_body, known)

    def _headers(self, known: Placeholders) -> dict[str, Compiled]:
        headers = encoding.compile_headers(self.headers, known)
        media_type = "application/json"
        if self.form is not None:
            media_type = "application/x-www-form-urlencoded"
        has_body = self.form is not None or self.json_body is not None
        if has_body and "content-type" not in map(str.lower, headers):
            headers["Content-Type"] = Compiled(media_type)
        return headers


class SecondRequest(RequestOptions):
    """The second request of a lookup, for the user with an id of the first response."""

    placeholders: ClassVar[Sequence[str]] = ("id", "profile_site")


class FirstRequest(RequestOptions):
    """A request for a query."""

    then: SecondRequest | None = None
    """A second request, for the user with the ``response.id`` of this one's response."""


class NicknameRequest(FirstRequest):
    """The request for the user with a nickname."""

    placeholders: ClassVar[Sequence[str]] = ("nickname", "profile_site", "profile_url")


class CardRequest(FirstRequest):
    """The request for the user with a card number."""

    placeholders: ClassVar[Sequence[str]] = ("card_number", "profile_site")


def _one_by_one(members: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    return ({name: text} for name, text in members.items())
