"""How an upstream is shown who we are: what is configured, and what a request then carries.

A secret is taken anew for each request, for its file may have changed, and is kept nowhere.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from idv_upstream.addresses import is_origin
from idv_upstream.places import is_set_elsewhere
from tornado_idv import Broken, Options, Secret

MASK = "***"
"""What is shown in place of a proof."""

# Longer than any token of our own: others write whole records into theirs.
_TOKEN = re.compile(r"[!-~]{1,4096}", re.ASCII)
_HEADER_VALUE = re.compile(r"(?=.{1,4096}$)[!-~](?:[ -~]*[!-~])?", re.ASCII)
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{0,4096}")
_TOKEN_URL = re.compile(r"([^/]+//[^/?#]+)(?:[/?][!-~]*)?", re.ASCII)

Headers = Mapping[str, str]


def is_token(text: str) -> bool:
    """Whether it can stand behind ``Bearer``."""
    return _TOKEN.fullmatch(text) is not None


class _Credential(Options):
    """What is configured; ``proof`` makes of it what ``placed`` puts into a request."""

    scheme: ClassVar[str] = "Bearer"

    def proof(self) -> str:
        """What a request must carry now; raises `Broken` if the secret cannot be one."""
        return ""

    def placed(self, url: str, headers: Headers, proof: str) -> tuple[str, Headers]:
        """The URL and the headers of a request that carries the proof, or its `MASK`."""
        return url, {**headers, "Authorization": f"{self.scheme} {proof}"}


class NoCredential(_Credential):
    """The other service is asked without a credential."""

    kind: Literal["none"] = "none"
    """Which kind of credential this is."""

    def placed(
        self,
        url: str,
        headers: Headers,
        proof: str,  # noqa: ARG002 there is none
    ) -> tuple[str, Headers]:
        return url, headers


def _bearer_token(token: SecretStr) -> SecretStr:
    if not is_token(token.get_secret_value()):
        raise ValueError(
            "not a bearer token; write 1 to 4096 visible ASCII characters, without a space"
        )
    return token


class BearerToken(_Credential):
    """The other service is asked with ``Authorization: Bearer``."""

    kind: Literal["bearer"]
    """Which kind of credential this is."""
    token: Annotated[Secret, AfterValidator(_bearer_token)]
    """The key that the other service gave us."""

    def proof(self) -> str:
        token = self.token.get_secret_value()
        if not is_token(token):
            raise Broken("its token is no bearer token")
        return token


def _password(password: SecretStr) -> SecretStr:
    if not _TEXT.fullmatch(password.get_secret_value()):
        raise ValueError("not a password; write at most 4096 characters, on one line")
    return password


class BasicPassword(_Credential):
    """The other service is asked with ``Authorization: Basic``."""

    scheme = "Basic"

    kind: Literal["basic"]
    """Which kind of credential this is."""
    username: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f:]{1,256}$")]
    """The name that the other service gave us; without a colon."""
    password: Annotated[Secret, AfterValidator(_password)]
    """The password that belongs to it."""

    def proof(self) -> str:
        password = self.password.get_secret_value()
        if not _TEXT.fullmatch(password):
            raise Broken("its password is not one line of text")
        # RFC 7617 leaves the encoding open; UTF-8 is what it lets servers ask for.
        return b64encode(f"{self.username}:{password}".encode()).decode()


def _key(value: SecretStr) -> SecretStr:
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError(
            "not a key; write 1 to 4096 ASCII characters, on one line, "
            "without a space at either end"
        )
    return value


class KeyInPlace(_Credential):
    """The other service is asked with a key in a header or a query parameter."""

    kind: Literal["api_key"]
    """Which kind of credential this is."""
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")] | None = None
    """The header that holds the key, and nothing else."""
    query: Annotated[str | None, Field(pattern=r"^[!-~]{1,64}$", validate_default=True)] = None
    """The query parameter that holds the key; logs on the way may show it."""
    value: Annotated[Secret, AfterValidator(_key)]
    """The key that the other service gave us."""

    @field_validator("header")
    @classmethod
    def _may_be_set(cls, header: str | None) -> str | None:
        if header is not None and is_set_elsewhere(header) and header.lower() != "authorization":
            raise ValueError("this header is the client's own; a key has its place in another")
        return header

    @field_validator("query")
    @classmethod
    def _one_place(cls, query: str | None, info: ValidationInfo) -> str | None:
        if "header" in info.data and (query is None) == (info.data["header"] is None):
            raise ValueError("write either header or query: where the key has its place")
        return query

    def proof(self) -> str:
        key = self.value.get_secret_value()
        if not _HEADER_VALUE.fullmatch(key):
            raise Broken("its key is not one line of ASCII text")
        return key

    def placed(self, url: str, headers: Headers, proof: str) -> tuple[str, Headers]:
        if self.header is not None:
            return url, {**headers, self.header: proof}
        behind = "&" if "?" in url else "?"
        return f"{url}{behind}{quote(self.query or '', '')}={quote(proof, '*')}", headers


def _token_url(url: str) -> str:
    parts = _TOKEN_URL.fullmatch(url)
    if parts is None or "#" in url or not is_origin(parts[1]):
        raise ValueError(
            "not an address of a token server; write http or https, a host and a path, like "
            "https://login.example/oauth2/token: no user info and no fragment"
        )
    return url


class ClientCredentials(_Credential):
    """The other service is asked with a token that a token server gives us (OAuth 2.0)."""

    kind: Literal["oauth2"]
    """Which kind of credential this is."""
    token_url: Annotated[str, AfterValidator(_token_url)]
    """Where tokens are given out."""
    client_id: Annotated[str, Field(pattern=r"^[ -~]{1,256}$")]
    """The name that the token server gave us."""
    client_secret: Annotated[Secret, AfterValidator(_password)]
    """The password that belongs to it."""
    scope: Annotated[str, Field(pattern=r"^[ -~]{1,1024}$")] | None = None
    """What the token shall be good for, in the words of the token server."""
    audience: Annotated[str, Field(pattern=r"^[ -~]{1,1024}$")] | None = None
    """Whom the token shall be good for, if the token server asks for it."""
    style: Literal["basic", "form"] = "basic"
    """Whether the token server takes ``client_secret`` from a header (basic) or the body (form)."""


Credential = Annotated[
    NoCredential | BearerToken | BasicPassword | KeyInPlace | ClientCredentials,
    Field(discriminator="kind"),
]
"""How we prove who we are; the member ``kind`` says which of them it is."""
