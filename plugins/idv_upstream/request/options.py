"""The options ``by_nickname`` and ``by_card``: the parts of a request."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from idv_upstream.request.template import Placeholders, Problem, RequestTemplate, parse_json
from tornado_idv import Options

_METHOD = re.compile("(?!(?:CONNECT|TRACE)$)[A-Z]{1,20}")
_SIZE = re.compile(
    r"""(?:(?<![a-z])|(?<=%5B))(?:\w*_)?(?:top|limit|count|rows|first|last|take|num|max(?:_?(?:results|records|items))?
    |limitTo(?:First|Last)|(?:results|hits|items)?_?per_?page|(?:page)?_?(?:size|limit))
    (?:"|\]|%5D)?(?:\s*[=:]\s*"?|\s+)([01])\b(?![.%])""",
    re.IGNORECASE | re.VERBOSE,
)
"""Pattern of a page size of 0 or 1 in a request, such as ``limit=1`` or ``"maxResults": 1``."""


class RequestOptions(Options):
    """The request for one user."""

    placeholders: ClassVar[Sequence[str]]
    """The names of the allowed placeholders."""

    method: str = ""
    """The HTTP method in capitals. The default is ``GET``, or ``POST`` if there is a body."""
    url: str
    """A path below ``base_url`` with a leading slash, or a complete URL. Placeholders are allowed
    after the host."""
    query: dict[str, str] = Field(default_factory=dict)
    """Additional query parameters."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Additional headers."""
    json_body: Any = Field(default=None, alias="json")
    """The JSON body: a mapping, a list, or a string that contains JSON."""
    form: dict[str, str] | None = None
    """The body as a form, instead of JSON."""
    repeatable: bool | None = None
    """Allow a retry after a failed attempt. The default is true for ``GET`` and ``HEAD``."""

    @property
    def page_size(self) -> int | None:
        """The page size in the request if it is 0 or 1, otherwise ``None``."""
        parameters = {**self.query, **(self.form or {})}
        texts = [self.url, *(f"{name}={value}" for name, value in parameters.items())]
        texts.append(json.dumps(self.json_body).replace("\\", ""))
        sizes = [int(match[1]) for text in texts for match in _SIZE.finditer(text)]
        return min(sizes, default=None)

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        if not _METHOD.fullmatch(method):
            raise ValueError("not a valid method; write it in capitals, like POST")
        return method

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        Placeholders(cls.placeholders).compile_url(url, {})
        return url

    @field_validator("query", "form", "json_body")
    @classmethod
    def _check_values(cls, values: Any) -> Any:
        _report(Placeholders(cls.placeholders).problems(parse_json(values)))
        return values

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("duplicate header (names are case-insensitive)")
        _report(Placeholders(cls.placeholders).header_problems(headers))
        return headers

    @field_validator("form")
    @classmethod
    def _check_single_body(cls, form: Any, info: ValidationInfo) -> Any:
        if form is not None and info.data.get("json_body") is not None:
            raise ValueError("a request has one body; write either json or form")
        return form

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        template = self.template("x")
        if template.render("x") == template.render("y"):
            name = self.placeholders[0]
            raise ValueError(f"request is the same for all users; write the placeholder {{{name}}}")
        return self

    def template(self, profile_site: str) -> RequestTemplate:
        """Compile the request. ``profile_site`` replaces the placeholder ``{profile_site}``."""
        known = Placeholders(self.placeholders, profile_site)
        headers = {name: known.compile(text) for name, text in self.headers.items()}
        body, media_type = None, ""
        if self.form is not None:
            body = known.compile_form(self.form)
            media_type = "application/x-www-form-urlencoded"
        elif self.json_body is not None:
            body = known.compile_json(parse_json(self.json_body))
            media_type = "application/json"
        if body is not None and "content-type" not in map(str.lower, headers):
            headers["Content-Type"] = [media_type]
        method = self.method or ("GET" if body is None else "POST")
        repeatable = method in ("GET", "HEAD") if self.repeatable is None else self.repeatable
        url = known.compile_url(self.url, self.query)
        return RequestTemplate(method, url, headers, body, repeatable)


class SecondRequest(RequestOptions):
    """The second request of a lookup, with the id from the first response."""

    placeholders: ClassVar[Sequence[str]] = ("id", "profile_site")


class FirstRequest(RequestOptions):
    """The first or only request of a lookup."""

    then: SecondRequest | None = None
    """A second request, with the ``response.id`` from the first response."""

    @property
    def requests(self) -> Sequence[RequestOptions]:
        """The first request, and the second request if there is one."""
        return [self] if self.then is None else [self, self.then]


class NicknameRequest(FirstRequest):
    """The request for the user with a nickname."""

    placeholders: ClassVar[Sequence[str]] = ("nickname", "profile_site", "profile_url")


class CardRequest(FirstRequest):
    """The request for the user with a card number."""

    placeholders: ClassVar[Sequence[str]] = ("card_number", "profile_site")


def _report(problems: Iterable[Problem]) -> None:
    """If there are problems, raise one `ValidationError` with all problems and their locations."""
    details = []
    for steps, text in problems:
        error = PydanticCustomError("value_error", "{error}", {"error": text})
        details.append(InitErrorDetails(type=error, loc=steps, input=None))
    if details:
        raise ValidationError.from_exception_data("request", details)
