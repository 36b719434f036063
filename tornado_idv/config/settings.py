"""The settings: what may stand in `config.yaml`, what it defaults to and what it means.

The docstring below a setting is its description in the JSON Schema.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from tornado_idv.backend import BackendOptions
from tornado_idv.config.shapes import (
    BodyLimit,
    Host,
    Moment,
    Network,
    Shape,
    Site,
    Timeout,
)
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.keys.api_key import Scope
from tornado_idv.keys.token import check_token, digest
from tornado_idv.scalars import ConfigPath, Duration, Pattern, Secret, Whole

CardDigits = Annotated[Whole, Field(ge=1, le=64)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[Whole, Field(ge=1)]


def _token(secret: SecretStr) -> SecretStr:
    check_token(secret.get_secret_value())
    return secret


class Section(BaseModel):
    """What all sections hold to: frozen, strict, and silent about what was written."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class DrainSettings(Section):
    """How the service stops."""

    delay: Duration = 0.0
    """How long it goes on as before after it was told to stop."""
    timeout: Duration = 15.0
    """How long requests in flight may then take to finish."""


class TlsSettings(Section):
    """What the service proves itself with."""

    cert_file: ConfigPath
    """The certificate and those that lead to its authority, in PEM."""
    key_file: ConfigPath
    """The private key, in PEM."""


class ServerSettings(Section):
    """Where the service listens, and how patient it is."""

    host: Host = "127.0.0.1"
    """The address to listen on, or the name of a host."""
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    """The port to listen on; 0 takes any that is free."""
    base_path: Annotated[
        str,
        Shape(
            r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)*",
            "must be empty or like /identity, without a slash at the end",
        ),
    ] = ""
    """What stands in front of every path of the API, such as ``/identity``."""
    max_body: BodyLimit = 16 * 1024
    """The largest body of a request; at most 1MiB."""
    idle_timeout: Timeout = 10.0
    """How long a connection may stay silent between two requests."""
    body_timeout: Timeout = 5.0
    """How long the body of a request may take to arrive."""
    request_timeout: Timeout = 2.0
    """How long the answer to a request may take, whatever its backends take."""
    max_connections: Count = 4000
    """How many connections may be open at once."""
    packet_cache: bool = True
    """Whether requests that were understood before skip the handlers; only their speed shows it."""
    trusted_proxies: tuple[Network, ...] = ()
    """The addresses or networks of the proxies whose ``X-Forwarded-For`` is believed."""
    tls: TlsSettings | None = None
    """What the service proves itself with; without it, it speaks in the clear."""
    drain: DrainSettings = DrainSettings()
    """How the service stops."""


class KeySettings(Section):
    """A key that callers may use; it has either ``sha256`` or ``token``."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["sha256"]}, {"required": ["token"]}]}
    )

    id: Annotated[str, Shape("[A-Za-z0-9.-]{1,64}", "must be 1 to 64 letters, digits, . and -")]
    """The public name of the key, for logs."""
    sha256: Annotated[str, Shape("[0-9A-Fa-f]{64}", "must be 64 hexadecimal digits")] | None = (
        Field(None, repr=False)
    )
    """The SHA-256 of the token, in hexadecimal digits."""
    token: Annotated[Secret, AfterValidator(_token)] | None = None
    """The token itself; only with ``demo: true`` or when listening on loopback."""
    owner: str = ""
    """Who uses the key."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("identify:url", "identify:card")
    """What the key may do."""
    not_before: Moment | None = None
    """When the key begins to be valid."""
    expires: Moment | None = None
    """When the key ceases to be valid."""

    @field_validator("expires")
    @classmethod
    def _expires_later(cls, expires: datetime | None, info: ValidationInfo) -> datetime | None:
        begins = info.data.get("not_before")
        if expires is not None and begins is not None and expires <= begins:
            raise ValueError("must be after not_before")
        return expires

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token: 32 bytes, whichever way the key was written."""
        if self.token is None:
            return bytes.fromhex(self.sha256 or "")
        return digest(self.token.get_secret_value())


class AuthSettings(Section):
    """Who may ask."""

    keys: tuple[KeySettings, ...] = ()
    """The keys that callers may use."""


class CacheSettings(Section):
    """How long and how many answers are remembered."""

    ttl: Duration = 300.0
    """How long a user found is answered from the cache."""
    negative_ttl: Duration = 30.0
    """How long "not found" is answered from the cache."""
    max_entries: Count = 100_000
    """How many found answers are remembered."""
    max_negative_entries: Count = 20_000
    """How many "not found" answers are remembered."""
    jitter: Share = 0.1
    """The share of a time that chance may take off, so that not all answers end together."""
    stale_if_error: Duration = 3600.0
    """How long past its time a user found is still answered while no backend can tell."""
    refresh_ahead: Share = 0.8
    """The share of its time after which a user who is asked for is looked up again."""
    degraded_ttl: Duration = 30.0
    """How long a user is remembered who was found after a backend that was unavailable."""
    failure_memo: Duration = 2.0
    """How long a lookup that failed is answered 503 without asking again."""


class IdentifierSettings(Section):
    """What a nickname and a card number may look like."""

    nickname_pattern: Pattern = "[A-Za-z0-9_.-]{1,64}"
    """The regular expression that a whole nickname must match; only ASCII ever does."""
    nickname_case: Literal["preserve", "fold"] = "preserve"
    """Whether case makes another user (preserve), or nicknames are put in lower case (fold)."""
    card_length: tuple[CardDigits, CardDigits] = (1, 32)
    """The fewest and the most digits of a card number, 1 to 64."""

    @field_validator("card_length")
    @classmethod
    def _fewest_first(cls, length: tuple[int, int]) -> tuple[int, int]:
        if length[0] > length[1]:
            raise ValueError("the fewest digits come first, then the most")
        return length


class LoggingSettings(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    format: Literal["auto", "console", "json"] = "auto"
    """How a line looks; auto is console on a terminal and json elsewhere."""


class Settings(Section):
    """Everything that `config.yaml` may say."""

    profile_sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    """The sites whose profile URLs name users; answers use the first."""
    server: ServerSettings = ServerSettings()
    """Where the service listens, and how patient it is."""
    auth: AuthSettings = AuthSettings()
    """Who may ask."""
    cache: CacheSettings = CacheSettings()
    """How long and how many answers are remembered."""
    identifiers: IdentifierSettings = IdentifierSettings()
    """What a nickname and a card number may look like."""
    backends: Annotated[tuple[BackendOptions, ...], Field(min_length=1)]
    """The sources of users, asked in this order."""
    logging: LoggingSettings = LoggingSettings()
    """What is logged, and how."""
    demo: bool = False
    """Whether this is a demonstration, where plain tokens may stand in the file."""

    def valid_forms(self) -> Identifiers:
        """The reader of nicknames, profile URLs and card numbers that these settings ask for."""
        return Identifiers(
            sites=tuple(ProfileSite.parse(site) for site in self.profile_sites),
            nickname=re.compile(self.identifiers.nickname_pattern, re.ASCII),
            nickname_case=self.identifiers.nickname_case,
            card_length=self.identifiers.card_length,
        )
