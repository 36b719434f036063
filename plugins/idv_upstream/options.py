"""What an ``upstream`` takes in ``config.yaml``: where the other service is, and our credential."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    WithJsonSchema,
    field_validator,
)
from yarl import URL

from tornado_idv import BackendOptions, Secret

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ADDRESS = re.compile(
    rf"(?i:https?)://(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])"
    r"(?::[1-9][0-9]{0,4})?"
    r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)*/?",
    re.ASCII,
)
# RFC 6750, section 2.1; the length is what this service itself accepts as a key.
_TOKEN68 = re.compile(r"(?=.{1,512}$)[A-Za-z0-9._~+/-]+=*", re.ASCII)


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value) or not _is_understood(value):
        raise ValueError(
            "not an address this service can ask; write http or https, a host and, if need be, "
            "a port and a path, like https://directory.example/idv: no user info, query, "
            "fragment, percent-encoding or dot segments"
        )
    return value.removesuffix("/")


def _is_understood(value: str) -> bool:
    """Whether the client can ask there: it judges ports and punycode hosts, and not IPv6."""
    try:
        host = URL(value).host or ""
        return "[" not in value or bool(IPv6Address(host))
    except ValueError:
        return False


Address = Annotated[
    str,
    AfterValidator(_address),
    WithJsonSchema({"type": "string", "examples": ["https://directory.example"]}),
]
"""An ``http`` or ``https`` address without user info, query and fragment; kept without a slash
at its end."""


class _Credential(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class NoCredential(_Credential):
    """The other service is asked without a credential."""

    kind: Literal["none"] = "none"
    """Which kind of credential this is."""


class BearerToken(_Credential):
    """The other service is asked with ``Authorization: Bearer``."""

    kind: Literal["bearer"]
    """Which kind of credential this is."""
    token: Secret
    """The key that the other service gave us."""

    @field_validator("token")
    @classmethod
    def _is_token68(cls, token: SecretStr) -> SecretStr:
        if not _TOKEN68.fullmatch(token.get_secret_value()):
            raise ValueError(
                "not a bearer token; write 1 to 512 letters, digits and any of - . _ ~ + / "
                "with = at the end only"
            )
        return token


Credential = Annotated[NoCredential | BearerToken, Field(discriminator="kind")]
"""How we prove who we are; the member ``kind`` says which of them it is."""


class UpstreamOptions(BackendOptions):
    """The options of an ``upstream``."""

    base_url: Address
    """Where the other service is: what stands in front of ``/api/v1/identify/``."""
    auth: Credential = NoCredential()
    """The credential that the other service asks for."""
