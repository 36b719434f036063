"""The credentials for an upstream: their options, and their place in a request.

A secret is read for each request and never stored, because its file may change.
"""

import json
import re
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple
from urllib.parse import quote, quote_plus, urlencode

from msgspec.structs import replace
from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from idv_upstream.request.template import Request, is_reserved
from idv_upstream.request.url import origin_of
from tornado_idv import Broken, Options, Secret
from tornado_idv.kit.mapping import ExpressionText


class _Format(NamedTuple):
    """The format of a secret. ``problem`` is the error for a text in another format."""

    pattern: re.Pattern[str]
    problem: str

    def check(self, secret: SecretStr) -> SecretStr:
        """Return a valid secret unchanged. Raises `ValueError` for an invalid secret."""
        if not self.pattern.fullmatch(secret.get_secret_value()):
            raise ValueError(self.problem)
        return secret

    def read(self, secret: SecretStr) -> str:
        """Return the current text of a secret. Raises `Broken` for an invalid text."""
        text = secret.get_secret_value()
        if not self.pattern.fullmatch(text):
            raise Broken(f"the configured credential is {self.problem}")
        return text


TOKEN = _Format(
    re.compile(r"[!-~]{1,4096}", re.ASCII),
    "not a bearer token; write 1 to 4096 visible ASCII characters, without a space",
)
"""The format of a token. A token may be a JWT, so it may be longer than a key of this service."""
_PASSWORD = _Format(
    re.compile(r"[^\x00-\x1f\x7f]{0,4096}"),
    "not a password; write at most 4096 characters, on one line",
)
_KEY = _Format(
    re.compile(r"(?=.{1,4096}$)[!-~](?:[ -~]*[!-~])?", re.ASCII),
    "not a key; write 1 to 4096 ASCII characters, on one line, without a space at either end",
)
_Password = Annotated[Secret, AfterValidator(_PASSWORD.check)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]


def _may_be_set(header: str) -> str:
    if is_reserved(header) and header.lower() != "authorization":
        raise ValueError("this header is reserved; write another one")
    return header


_OwnHeader = Annotated[HeaderName, AfterValidator(_may_be_set)]


class _Credential(Options):
    """Base class for the options of credentials. `apply` adds the `secret` to a request."""

    scheme: ClassVar[str] = "Bearer"

    def secret(self) -> str:
        """Return the secret, encoded for a request. Raises `Broken` for an invalid secret."""
        return ""

    def secrets(self) -> Iterator[SecretStr]:
        return (value for _, value in self if isinstance(value, SecretStr))

    def apply(self, request: Request, secret: str) -> Request:
        """Return the request with the secret added to it."""
        authorization = f"{self.scheme} {secret}"
        return replace(request, headers={**request.headers, "Authorization": authorization})


class NoCredential(_Credential):
    """No credential: requests are anonymous."""

    kind: Literal["none"] = "none"
    """The kind of credential."""

    def apply(self, request: Request, secret: str) -> Request:  # noqa: ARG002 there is none
        return request


class BearerToken(_Credential):
    """A static bearer token, sent in ``Authorization: Bearer``."""

    kind: Literal["bearer"]
    """The kind of credential."""
    token: Annotated[Secret, AfterValidator(TOKEN.check)]
    """The token, issued by the upstream."""

    def secret(self) -> str:
        return TOKEN.read(self.token)


class BasicPassword(_Credential):
    """A user name and a password, sent in ``Authorization: Basic``."""

    scheme = "Basic"

    kind: Literal["basic"]
    """The kind of credential."""
    username: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f:]{1,256}$")]
    """The user name at the upstream, without a colon."""
    password: _Password
    """The password of this user."""

    def secret(self) -> str:
        # RFC 7617 defines no default encoding; a server can only announce UTF-8.
        return b64encode(f"{self.username}:{_PASSWORD.read(self.password)}".encode()).decode()


class KeyInPlace(_Credential):
    """An API key, sent in a header or a query parameter."""

    kind: Literal["api_key"]
    """The kind of credential."""
    header: _OwnHeader | None = None
    """The request header for the key. Its value is the key without a prefix."""
    query: Annotated[str | None, Field(pattern=r"^[!-~]{1,64}$", validate_default=True)] = None
    """The query parameter for the key. Access logs of servers and proxies may contain it."""
    value: Annotated[Secret, AfterValidator(_KEY.check)]
    """The key, issued by the upstream."""

    @field_validator("query")
    @classmethod
    def _header_or_query(cls, query: str | None, info: ValidationInfo) -> str | None:
        if "header" in info.data and (query is None) == (info.data["header"] is None):
            raise ValueError("write either header or query, not both")
        return query

    def secret(self) -> str:
        return _KEY.read(self.value)

    def apply(self, request: Request, secret: str) -> Request:
        if self.header is not None:
            return replace(request, headers={**request.headers, self.header: secret})
        separator = "&" if "?" in request.url else "?"
        pair = f"{quote(self.query or '', '')}={quote(secret, '*')}"
        return replace(request, url=f"{request.url}{separator}{pair}")


def _check_url(text: str) -> str:
    if not origin_of(text) or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(
            "not the URL of a token server; write http or https, a host and a path, like "
            "https://login.example/oauth2/token, without user info or fragment"
        )
    return text


_TokenUrl = Annotated[str, AfterValidator(_check_url)]


class IssuedToken(_Credential):
    """A token with a limited lifetime, which this service requests from an issuer."""

    issuer: ClassVar[str]
    """The name of the issuer in messages."""
    max_pause: ClassVar[float]
    """Maximum pause in seconds before the next token request. Each refusal lengthens the pause."""

    @abstractmethod
    def token_request(self) -> Request:
        """Return the request for a token, with the current secrets."""

    @abstractmethod
    def where(self) -> tuple[str, str | None]:
        """Return two expressions on the issuer's response: for the token and for its lifetime."""


class ClientCredentials(IssuedToken):
    """An OAuth 2.0 access token, issued by a token server for client credentials."""

    issuer = "token server"
    max_pause = 5.0

    kind: Literal["oauth2"]
    """The kind of credential."""
    token_url: _TokenUrl
    """The token endpoint of the token server."""
    client_id: Annotated[str, Field(pattern=r"^[ -~]{1,256}$")]
    """The client identifier at the token server."""
    client_secret: _Password
    """The secret of this client."""
    scope: Annotated[str, Field(pattern=r"^[ -~]{1,1024}$")] | None = None
    """The requested scope of the token."""
    audience: Annotated[str, Field(pattern=r"^[ -~]{1,1024}$")] | None = None
    """The requested audience of the token. Some token servers require it."""
    style: Literal["basic", "form"] = "basic"
    """The place of ``client_secret`` in the token request: a header (basic) or the body (form)."""

    def token_request(self) -> Request:
        """Return the request for client credentials (RFC 6749, section 4.4)."""
        secret = self.client_secret.get_secret_value()
        form = {"grant_type": "client_credentials"}
        form |= self.model_dump(include={"scope", "audience"}, exclude_none=True)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self.style == "form":
            form |= {"client_id": self.client_id, "client_secret": secret}
        else:
            # Both parts must be encoded before they are joined (RFC 6749, section 2.3.1).
            pair = f"{quote_plus(self.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return Request("POST", self.token_url, headers, urlencode(form).encode(), repeatable=False)

    def where(self) -> tuple[str, str | None]:
        bearer = "(!token_type || lower(token_type) == 'bearer') && access_token"
        return bearer, "min([to_number(expires_in) || `300`, `3600`])"


class LoginRequest(Options):
    """The request for a login, and the place of the token in its response."""

    url: _TokenUrl
    """The complete URL of the login. A POST request sends the name and the password."""
    headers: dict[_OwnHeader, Secret] = Field(default_factory=dict)
    """Additional headers of the login request."""
    json_body: dict[str, Secret] = Field(alias="json")
    """The body as JSON, with the name and the password in the members that the upstream expects."""
    token: ExpressionText
    """An expression for the token in the response."""
    expires: ExpressionText | None = None
    """An expression for the token's lifetime in seconds, or for its expiry time, in the response.
    If the token is a JWT with an earlier ``exp``, it is used only until ``exp``."""
    header: _OwnHeader = "Authorization"
    """The request header for the token. ``Authorization`` contains ``Bearer`` and the token.
    Any other header contains only the token."""


class Login(IssuedToken):
    """A token that the upstream issues at a login with name and password."""

    issuer = "login"
    max_pause = 3600.0  # the refusals of all processes together may lock the account

    kind: Literal["login"] = "login"
    """The kind of credential. It may be omitted if ``login`` is set."""
    login: LoginRequest
    """The login request."""

    def secrets(self) -> Iterator[SecretStr]:
        yield from (*self.login.headers.values(), *self.login.json_body.values())

    def token_request(self) -> Request:
        headers, body = (
            {name: secret.get_secret_value() for name, secret in secrets.items()}
            for secrets in (self.login.headers, self.login.json_body)
        )
        headers = {"Content-Type": "application/json"} | headers
        return Request("POST", self.login.url, headers, json.dumps(body).encode(), repeatable=False)

    def where(self) -> tuple[str, str | None]:
        return self.login.token, self.login.expires

    def apply(self, request: Request, secret: str) -> Request:
        if self.login.header.lower() == "authorization":
            return super().apply(request, secret)
        return replace(request, headers={**request.headers, self.login.header: secret})


Credential = Annotated[
    NoCredential | BearerToken | BasicPassword | KeyInPlace | ClientCredentials | Login,
    Field(discriminator="kind"),
]
"""The credential of this service for an upstream. The member ``kind`` selects the class."""
