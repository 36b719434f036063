"""Addresses of listening sockets."""

import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, InstanceOf, ValidationInfo, WithJsonSchema

from tornado_idv.config.types import UNIX, Host, is_host, is_loopback
from tornado_idv.options import Options, WholeNumber, absolute_path

_TCP = re.compile(r"(?:\[(.*:.*)\]|([^\[\]:]+)):([0-9]{1,5})", re.ASCII)
_MAX_PORT = 65535
_MAX_PATH = 107
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 shown in URLs, not bound


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listener: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"{UNIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port or 'any free port'}"

    def url(self, scheme: str) -> str:
        """Return the base URL for requests from this machine, without a trailing slash.

        For a Unix socket, the host in the URL has no effect.
        """
        if self.path is not None:
            return f"{scheme}://localhost"
        return f"{scheme}://{replace(self, host=_LOOPBACK_OF.get(self.host, self.host))}"

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return self.path is not None or is_loopback(self.host)

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse ``HOST:PORT`` or ``unix:PATH``; raises `ValueError` for anything else."""
        if text.startswith(UNIX) and text != UNIX:
            return cls(path=Path(text.removeprefix(UNIX)))
        match = _TCP.fullmatch(text)
        host, port = (match[1] or match[2], int(match[3])) if match else ("", 0)
        if is_host(host) and port <= _MAX_PORT:
            return cls(host, port)
        raise ValueError("must be like 127.0.0.1:8080, [::1]:8080 or unix:/run/idv/http.sock")

    @classmethod
    def of(cls, sock: socket.socket) -> "Address":
        """Return the address of a bound socket."""
        name = sock.getsockname()
        if sock.family == socket.AF_UNIX:
            return cls(path=Path(os.fsdecode(name).replace("\0", "@")))
        return cls(*name[:2])


def _listen_address(value: object, info: ValidationInfo) -> Address:
    text = value if isinstance(value, str) else ""
    if text.startswith(f"{UNIX}@"):
        raise ValueError("abstract sockets are not supported; write unix: and the path of a file")
    address = Address.parse(text)
    if address.path is None:
        return address
    path = absolute_path(str(address.path), info)
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ValueError(f"the path of a Unix socket may have at most {_MAX_PATH} bytes")
    return Address(path=path)


ListenAddress = Annotated[
    InstanceOf[Address],
    BeforeValidator(_listen_address),
    WithJsonSchema({"type": "string", "pattern": "^unix:[^@].*$|:[0-9]{1,5}$"}),
]
"""The type of a setting of the form ``HOST:PORT`` or ``unix:PATH``."""


class AdminSettings(Options):
    """The admin listener. On a non-loopback address, requests need a key with scope admin."""

    host: Host = "127.0.0.1"
    """The address or host name to listen on."""
    port: Annotated[WholeNumber, Field(ge=0, le=65535)] = 8081
    """The port to listen on; 0 takes any free port."""
