"""The test double: a service in demo mode, which fails on purpose, and what starts it for tests."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tornado_idv.double.process import IdentityService

__all__ = ["IdentityService"]

if not TYPE_CHECKING:  # every run of pytest imports this package, and only some use it

    def __getattr__(name: str) -> object:
        if name != "IdentityService":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.process").IdentityService
