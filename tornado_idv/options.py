"""The base class and the types for settings, and for the options of plugins.

Every YAML scalar is read as text. These types convert the text to values.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import SchemaError, SchemaValidator, core_schema

from tornado_idv.files import FileSecret
from tornado_idv.units import (
    DURATION,
    PERCENTAGE,
    RATE,
    SIZE,
    Rate,
    parse_duration,
    parse_percentage,
    parse_rate,
    parse_size,
)
from tornado_idv.yaml_loader import FileText

OptionsT = TypeVar("OptionsT", bound="Options")
_TEN_YEARS = 10 * 365 * 86400.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.ASCII | re.DOTALL)
_LIKE_URL = re.compile(r"(?!\.{0,2}/[^/]).*(?::/|:.*@|=)", re.DOTALL)
_PASSWORDS = re.compile(
    r"(://[^@/?#:]*):[^@/?#]*(?=@)|([?&][^=&]*password[^=&]*)=[^&#]*", re.IGNORECASE
)
_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)
_NOT_EMPTY = WithJsonSchema({"type": "string", "minLength": 1})
APPLIED = object()
"""Marks a setting as applied by a reload: ``Annotated[bool, APPLIED]``. Others need a restart."""


class Options(BaseModel):
    """Base class of every section of `config.yaml`.

    Unknown members are errors. Values cannot be changed. Errors contain no values, because a value
    may be a secret. The docstring below an option is its description in the JSON Schema.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


def as_type(section: Options, model: type[OptionsT]) -> OptionsT:
    """Return ``section``. If its type is not ``model``, return the defaults of ``model``."""
    return section if isinstance(section, model) else model()


def _from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Return a validator that parses text. Other values, such as defaults, are not changed."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that calls ``check`` for each value. ``check`` may raise `ValueError`."""

    def checked(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(checked)


def text_schema(pattern: re.Pattern[str], *examples: str) -> WithJsonSchema:
    """Return the JSON Schema of a text that must match the whole pattern."""
    given = {"examples": list(examples)} if examples else {}
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern.pattern}$", **given})


def _whole_number(text: str) -> int:
    # pydantic alone would accept " 80", "+80", "8_0" and "80.0", too.
    if not _DIGITS.fullmatch(text):
        raise ValueError("must be a whole number, written in digits alone")
    return int(text)


def _rate(value: object) -> object:
    # pydantic alone would accept a mapping, too.
    if not isinstance(value, str | Rate):
        raise ValueError("must be a rate, like 100/second or 300/10 minutes")  # noqa: TRY004
    return parse_rate(value) if isinstance(value, str) else value


def absolute_path(text: str, info: ValidationInfo) -> Path:
    """Return the absolute path for a setting. Relative paths begin at the configuration's folder.

    Raises `ValueError`.
    """
    if not text:
        raise ValueError("a path is missing")
    if "\0" in text:
        raise ValueError("not a path; it holds a NUL character")
    base: Path = (info.context or {}).get("base_dir", Path())
    return base / text


def _absolute(value: object, info: ValidationInfo) -> object:
    return absolute_path(value, info) if isinstance(value, str) else value


def compile_pattern(text: str) -> Callable[[str], bool]:
    """Return a function that tests whether a whole text matches a regular expression.

    The function takes linear time for any expression, because it uses Rust's `regex`. This library
    does not support look-around and back references. Raises `ValueError` for an invalid expression.
    """
    try:
        for each in text, rf"\A(?:{text})\z":  # first alone: its parentheses may be unbalanced
            schema = core_schema.str_schema(pattern=each, regex_engine="rust-regex", strict=True)
            validator = SchemaValidator(schema)
    except SchemaError:
        text = "not a regular expression; look-around and back references are not supported"
        raise ValueError(text) from None
    return validator.isinstance_python


def _secret(value: object) -> object:
    return FileSecret(value, value.path) if isinstance(value, FileText) else value


def _without_password(url: str) -> str:
    return _PASSWORDS.sub(r"\1\2", url).replace("://@", "://", 1)


def _follow_password(url: SecretStr) -> SecretStr:
    if isinstance(url, FileSecret):
        url.fixed_part = _without_password
    return url


def _key_store(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and _URL.fullmatch(value):
        return FileSecret(value, value.path) if isinstance(value, FileText) else SecretStr(value)
    if isinstance(value, str) and is_like_url(value):
        raise ValueError(
            "neither a path nor a URL; write postgresql://user:password@host/database, or a path "
            "with ./ in front"
        )
    return _absolute(value, info)


def is_like_url(path: str) -> bool:
    """Return whether a path looks like a mistyped URL. Such a text may contain a password."""
    return _LIKE_URL.match(path) is not None


WholeNumber = Annotated[int, Field(strict=True), _from_text(_whole_number)]
"""A whole number, written in digits alone."""

Duration = Annotated[
    float,
    _from_text(parse_duration),
    Field(ge=0, le=_TEN_YEARS),
    text_schema(DURATION, "250ms", "30s", "5m"),
]
"""A duration in seconds, written ``250ms``, ``30s``, ``5m``, ``1h`` or ``7d``."""

Size = Annotated[int, _from_text(parse_size), Field(ge=0), text_schema(SIZE, "16KiB")]
"""A size in bytes, written ``512B``, ``16KiB``, ``1MiB`` or ``1GiB``."""

Percentage = Annotated[str, checked_by(parse_percentage), text_schema(PERCENTAGE, "5%")]
"""A percentage as text, from ``0%`` to ``100%``."""

RateLimit = Annotated[
    Rate, BeforeValidator(_rate), text_schema(RATE, "100/second", "300/10 minutes")
]
"""A rate, written ``100/second`` or ``300/10 minutes``."""

ConfigPath = Annotated[Path, BeforeValidator(_absolute), _NOT_EMPTY]
"""A path. Relative paths begin at the folder of the configuration file."""

Secret = Annotated[SecretStr, BeforeValidator(_secret), WithJsonSchema({"type": "string"})]
"""A secret text, which no repr shows. It may be given as ``${env:NAME}`` or ``${file:path}``.

If ``${file:path}`` is the whole setting, the secret follows the file, so do not keep its value.
"""

Password = Annotated[Secret, PlainSerializer(lambda _: SecretStr("-"), return_type=SecretStr)]
"""A `Secret` for authentication only. Cached answers stay valid when a `Password` changes."""

SecretUrl = Annotated[
    Secret,
    AfterValidator(_follow_password),
    PlainSerializer(
        lambda url: SecretStr(_without_password(url.get_secret_value())), return_type=SecretStr
    ),
]
"""A secret URL. Its passwords behave like `Password`. Other parts change only after a reload."""

KeyStoreAddress = Annotated[Path | SecretStr, BeforeValidator(_key_store), _NOT_EMPTY]
"""A `ConfigPath`, or the URL of a key store as `Secret`, because a URL may contain a password."""

Pattern = Annotated[str, checked_by(compile_pattern)]
"""A regular expression; see `compile_pattern`."""
