"""Python client of the service. A lookup returns ``None`` only for a user who does not exist.

The client imports no module of the service except `strict_json`. Only `AsyncClient` uses aiohttp.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tornado_idv.client.errors import (
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    NotFound,
    RateLimited,
    Undetermined,
    Unexpected,
)
from tornado_idv.client.lookup import Result, User
from tornado_idv.client.synchronous import Client

if TYPE_CHECKING:
    from tornado_idv.client.asynchronous import AsyncClient

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "InvalidFormat",
    "InvalidKey",
    "MissingScope",
    "NotFound",
    "RateLimited",
    "Result",
    "Undetermined",
    "Unexpected",
    "User",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "AsyncClient":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.asynchronous").AsyncClient
