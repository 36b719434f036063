"""The settings: the contents of `config.yaml`, with defaults and descriptions."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Literal

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from tornado_idv.config.address import Address, AdminSettings, ListenAddress
from tornado_idv.config.types import (
    AFTER_NOT_BEFORE,
    UNIX,
    BodyLimit,
    CardDigits,
    Host,
    KeyId,
    Moment,
    Network,
    Sha256,
    Site,
    Timeout,
    Workers,
    accepted_by,
    matching,
)
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.shared import SharedCacheOptions
from tornado_idv.keys.api_key import DEFAULT_SCOPES, ApiKey, Scope
from tornado_idv.keys.token import check_token, digest
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.options import (
    APPLIED,
    ConfigPath,
    Duration,
    KeyStoreAddress,
    Options,
    Pattern,
    RateLimit,
    Secret,
    WholeNumber,
    checked_by,
    compile_pattern,
)
from tornado_idv.units import RATE, Rate


class DrainSettings(Options):
    """Times for a stop of the service."""

    delay: Duration = 0.0
    """The time after the stop signal in which new connections are still accepted."""
    timeout: Duration = 15.0
    """The maximum time for requests in flight to finish, counted from the end of ``delay``."""


class TlsSettings(Options):
    """The certificate of the service."""

    cert_file: ConfigPath
    """The certificate and its intermediate certificates, in PEM."""
    key_file: ConfigPath
    """The private key, in PEM."""


_SEGMENT = r"/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+"
_BASE_PATH = rf"(?:{_SEGMENT})*"
_HEALTH_PATH = rf"(?!.*/api/)(?:{_SEGMENT})+"
_HealthPath = Annotated[
    str, *matching(_HEALTH_PATH, "must be like /healthz, and not a path of the API")
]


class ServerSettings(Options):
    """The public listener, its limits and timeouts."""

    host: Host = "127.0.0.1"
    """The address or host name to listen on."""
    port: Annotated[WholeNumber, Field(ge=0, le=65535)] = 8080
    """The port to listen on; 0 takes any free port."""
    listen: Annotated[tuple[ListenAddress, ...], Field(min_length=1)] | None = None
    """The addresses and Unix sockets to listen on. They replace ``host`` and ``port``."""
    workers: Workers = 1
    """The number of processes that serve requests; ``auto`` means one for each CPU."""
    base_path: Annotated[
        str,
        *matching(_BASE_PATH, "must be empty or like /identity, without a slash at the end"),
        APPLIED,
    ] = ""
    """The prefix of every path of the API, such as ``/identity``."""
    health_path: Annotated[_HealthPath | None, APPLIED] = None
    """The path of a health check for load balancers, such as ``/healthz``."""
    max_body: Annotated[BodyLimit, APPLIED] = 16 * 1024
    """The maximum size of a request body; at most 1MiB."""
    idle_timeout: Annotated[Timeout, APPLIED] = 10.0
    """The maximum time that a connection may be idle between two requests."""
    body_timeout: Annotated[Timeout, APPLIED] = 5.0
    """The maximum time for a request body to arrive."""
    request_timeout: Annotated[Timeout, APPLIED] = 2.0
    """The maximum time of a lookup, for all backends together."""
    max_connections: Annotated[WholeNumber, Field(ge=1), APPLIED] = 4000
    """The maximum number of open connections."""
    fast_path: Annotated[
        bool, Field(validation_alias=AliasChoices("fast_path", "packet_cache")), APPLIED
    ] = True
    """Whether the parsed head of a request is reused for later equal heads, to save time."""
    trusted_proxies: Annotated[tuple[Network, ...], APPLIED] = ()
    """The proxies whose ``X-Forwarded-For`` is trusted: addresses, networks or ``unix:``."""
    tls: TlsSettings | None = None
    """The certificate for HTTPS; without it, the service speaks plain HTTP."""
    drain: Annotated[DrainSettings, APPLIED] = DrainSettings()
    """Times for a stop of the service."""
    watch_config: Annotated[bool, APPLIED] = False
    """Whether to reload the configuration when this file, or a file named in it, changes."""

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self.listen or (Address(self.host, self.port),)

    def warning(self, addresses: Sequence[Address]) -> str | None:
        """Return a warning if keys cross a network in plain text to these addresses."""
        exposed = [each.host for each in addresses if not each.is_local]
        if not exposed or self.tls or {*self.trusted_proxies} - {UNIX}:
            return None
        return (
            f"plain HTTP on {', '.join(exposed)}: anyone on the network can read keys and "
            "users; set server.tls, or server.trusted_proxies for a proxy with TLS in front"
        )


class MissLimitSettings(Options):
    """A limit of misses: lookups with the result 404 or 422. A rate may replace the section."""

    # In JSON Schema, "pattern" applies to strings alone, and "properties" to objects alone.
    model_config = ConfigDict(
        json_schema_extra={"type": ["object", "string"], "pattern": f"^{RATE.pattern}$|\\$\\{{"}
    )

    rate: RateLimit
    """The maximum rate of misses. Above this rate, all lookups with the same key are refused."""
    log_only: bool = False
    """Whether lookups over the limit are logged instead of refused."""

    @model_validator(mode="before")
    @classmethod
    def _from_rate(cls, value: object) -> object:
        return {"rate": value} if isinstance(value, str) else value

    @property
    def limit(self) -> Rate:
        return replace(self.rate, log_only=self.log_only)


class KeyLimitSettings(Options):
    """The limits of one key. Each replaces the limit of the same name in ``limits``."""

    requests: RateLimit | None = None
    """The maximum rate of requests with a key, such as ``100/second``."""
    misses: MissLimitSettings | None = None
    """The maximum rate of misses with a key: lookups with the result 404 or 422."""


class LimitSettings(KeyLimitSettings):
    """Rate limits. By default there are none."""

    failed_auth: RateLimit | None = None
    """The maximum rate of requests without a valid key from one client address."""


class KeySettings(Options):
    """An API key; it has either ``sha256`` or ``token``."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["sha256"]}, {"required": ["token"]}]}
    )

    id: KeyId
    """The public name of the key, for logs."""
    sha256: Sha256 | None = Field(None, repr=False)
    """The SHA-256 of the token, in hexadecimal digits."""
    token: (
        Annotated[Secret, checked_by(lambda token: check_token(token.get_secret_value()))] | None
    ) = None
    """The token itself. It is allowed only with ``demo: true`` or when listening on loopback."""
    owner: str = ""
    """The person or service that uses the key."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = DEFAULT_SCOPES
    """The operations that the key permits."""
    not_before: Moment | None = None
    """The time from which the key is valid."""
    expires: Annotated[Moment | None, AFTER_NOT_BEFORE] = None
    """The time at which the key expires."""
    limits: KeyLimitSettings = KeyLimitSettings()
    """The limits of the key. Each replaces the limit of the same name in ``limits``."""

    @property
    def api_key(self) -> ApiKey:
        """The key as a record for the key ring."""
        token, misses = self.token, self.limits.misses
        return ApiKey(
            id=self.id,
            digest=digest(token.get_secret_value()) if token else bytes.fromhex(self.sha256 or ""),
            owner=self.owner,
            scopes=frozenset(self.scopes),
            not_before=self.not_before.timestamp() if self.not_before else -inf,
            expires=self.expires.timestamp() if self.expires else inf,
            requests=self.limits.requests,
            misses=misses.limit if misses else None,
        )


class AuthSettings(Options):
    """Authentication."""

    keys: tuple[KeySettings, ...] = ()
    """The API keys."""
    store: KeyStoreAddress | None = None
    """The key store that ``tornado-idv keys`` manages: a file, or ``postgresql://…``."""


class IdentifierSettings(Options):
    """The valid forms of nicknames and card numbers."""

    nickname_pattern: Pattern = "[A-Za-z0-9_.-]{1,64}"
    """The regular expression for a whole nickname. Non-ASCII text never matches."""
    nickname_case: Literal["preserve", "fold"] = "preserve"
    """Whether nicknames are case-sensitive (preserve) or compared in lower case (fold)."""
    card_length: Annotated[
        tuple[CardDigits, CardDigits],
        accepted_by(lambda each: each[0] <= each[1], "the minimum comes first, then the maximum"),
    ] = (1, 32)
    """The minimum and maximum number of digits of a card number, 1 to 64."""


class LoggingSettings(Options):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The minimum level of log lines."""
    format: Literal["auto", "console", "json"] = "auto"
    """The format of a line; auto is console on a terminal and json elsewhere."""
    health_checks: Annotated[bool, APPLIED] = True
    """Whether successful requests for ``server.health_path`` are in the access log."""
    ids: Literal["none", "hash", "full"] = "none"
    """The requested user in the access log: not shown, shown as a keyed hash, or in full."""


class Settings(Options):
    """The contents of `config.yaml`."""

    profile_sites: Annotated[tuple[Site, ...], Field(min_length=1), APPLIED]
    """The sites of profile URLs; responses use the first."""
    server: ServerSettings = ServerSettings()
    """The public listener, its limits and timeouts."""
    admin: AdminSettings | None = None
    """The operator's listener: health, metrics, cache purge. By default there is none."""
    auth: Annotated[AuthSettings, APPLIED] = AuthSettings()
    """Authentication."""
    limits: Annotated[LimitSettings, APPLIED] = LimitSettings()
    """Rate limits. By default there are none."""
    cache: Annotated[CacheLimits, APPLIED] = CacheLimits()
    """The cache of answers."""
    shared_cache: SharedCacheOptions | None = None
    """A cache shared by processes, queried after a miss in ``cache``. By default there is none."""
    identifiers: Annotated[IdentifierSettings, APPLIED] = IdentifierSettings()
    """The valid forms of nicknames and card numbers."""
    backends: Annotated[tuple[BackendOptions, ...], Field(min_length=1), APPLIED]
    """The sources of users, queried in this order."""
    logging: LoggingSettings = LoggingSettings()
    """Logging."""
    demo: bool = False
    """Whether this is a demonstration. The file may then contain plain tokens."""

    @property
    def served(self) -> tuple[BackendOptions, ...]:
        """The backends that answer lookups, in order: all but the shadows."""
        return tuple(each for each in self.backends if each.shadow is None)

    @property
    def shadows(self) -> tuple[BackendOptions, ...]:
        """The shadows: backends for comparison. No response uses the result of a shadow."""
        return tuple(each for each in self.backends if each.shadow is not None)

    @field_validator("backends")
    @classmethod
    def _one_answers(cls, backends: tuple[BackendOptions, ...]) -> tuple[BackendOptions, ...]:
        if all(each.shadow is not None for each in backends):
            raise ValueError("all backends are shadows; remove shadow from the one that answers")
        return backends

    def make_identifiers(self) -> Identifiers:
        """Return the parser of nicknames, profile URLs and card numbers for these settings."""
        return Identifiers(
            sites=tuple(ProfileSite.parse(site) for site in self.profile_sites),
            is_nickname=compile_pattern(self.identifiers.nickname_pattern),
            nickname_case=self.identifiers.nickname_case,
            card_length=self.identifiers.card_length,
        )
