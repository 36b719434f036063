"""Types for settings of the core. The types for plugins are in `tornado_idv.options`.

No message repeats a value, because it may be a secret.
"""

import re
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from tornado_idv.identifiers import ProfileSite
from tornado_idv.keys.api_key import KEY_ID
from tornado_idv.options import Duration, Size, WholeNumber, checked_by, text_schema

_LABEL = "[A-Za-z0-9_-]{1,63}"
# At most 253 characters, as in DNS; underscores, as in names of containers.
_HOST_NAME = re.compile(rf"(?!.{{254}}){_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
_MAX_WORKERS = 256
UNIX = "unix:"
"""Prefix of the address of a Unix socket. In ``trusted_proxies``, it means all Unix sockets."""
_NETWORK = rf"(?:[0-9A-Fa-f.:]{{2,45}}(?:/[0-9]{{1,3}})?|{UNIX})"
_NOT_A_NETWORK = "must be an IP address, a network like 10.0.0.0/8 or fd00::/8, or unix:"


def is_ip_address(text: str) -> bool:
    """Return whether ``text`` is an IPv4 or IPv6 address, the latter without brackets."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a listener on ``host``."""
    return ip_address(host).is_loopback if is_ip_address(host) else host.lower() == "localhost"


def is_host(text: str) -> bool:
    return is_ip_address(text) or _HOST_NAME.fullmatch(text) is not None


def accepted_by(accepts: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator. It raises an error with ``message`` unless ``accepts`` returns true."""

    def check(value: Any) -> None:
        if not accepts(value):
            raise ValueError(message)

    return checked_by(check)


def matching(expression: str, message: str) -> tuple[object, ...]:
    """Return the metadata of a text that must match the whole expression, for `Annotated`."""
    pattern = re.compile(expression, re.ASCII)
    return accepted_by(pattern.fullmatch, message), text_schema(pattern)


def _network(text: str) -> None:
    if text == UNIX:
        return
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(_NOT_A_NETWORK) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped:
        raise ValueError("IPv4 within IPv6 is written as IPv4, without ::ffff: in front")
    if ip_address(text.partition("/")[0]) != network.network_address:
        raise ValueError("not a network's first address; write it like 10.0.0.0/8")


def _workers(value: object) -> object:
    if isinstance(value, str) and value != "auto":
        value = int(value) if re.fullmatch("[0-9]{1,3}", value, re.ASCII) else 0
    if value != "auto" and value not in range(1, _MAX_WORKERS + 1):
        raise ValueError(f"must be a whole number from 1 to {_MAX_WORKERS}, or auto")
    return value


def _moment(value: object) -> object:
    # pydantic would read 2027 and "2027" as seconds after 1970.
    if not isinstance(value, str | float | int):
        return value
    try:
        return datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("not a date and time; write it like 2027-01-01T00:00:00Z") from None


def _after_not_before(expires: datetime | None, info: ValidationInfo) -> datetime | None:
    not_before = info.data.get("not_before")
    if expires is not None and not_before is not None and expires <= not_before:
        raise ValueError("must be after not_before")
    return expires


AFTER_NOT_BEFORE = AfterValidator(_after_not_before)
"""Validates that a time is later than the field ``not_before``. Either may be missing."""
Timeout = Annotated[Duration, Field(gt=0)]
CardDigits = Annotated[WholeNumber, Field(ge=1, le=64)]
BodyLimit = Annotated[
    Size, accepted_by(lambda size: 1 <= size <= 1024**2, "must be from 1B to 1MiB")
]
KeyId = Annotated[str, *matching(KEY_ID.pattern, "must be 1 to 64 letters, digits, . and -")]
Sha256 = Annotated[str, *matching("[0-9A-Fa-f]{64}", "must be 64 hexadecimal digits")]
Site = Annotated[str, checked_by(ProfileSite.parse)]
Host = Annotated[
    str, accepted_by(is_host, "must be an IP address or the name of a host, without a port")
]
Network = Annotated[str, *matching(_NETWORK, _NOT_A_NETWORK), checked_by(_network)]
Workers = Annotated[
    int | Literal["auto"],
    BeforeValidator(_workers),
    WithJsonSchema(
        {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": _MAX_WORKERS}]}
    ),
]
"""A number of processes, or ``auto``: one for each CPU."""
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    accepted_by(
        lambda moment: moment.tzinfo,
        "the time zone is missing; add Z for UTC, as in 2027-01-01T00:00:00Z",
    ),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
