"""The features of this service: the one list that knows them.

To remove a feature, delete its folder and its line here.
"""

from __future__ import annotations

from importlib import import_module

from tornado_idv.interfaces.feature import Feature

_NAMES = (
    "batch",
    "docs",
    "verify",
    "double",
    "keys_transfer",
    "reconcile",
    "shadow",
    "shared_cache",
    "snapshot",
    "status_page",
    "systemd",
    "users",
)
"""The folders, in the order in which they act."""

FEATURES: tuple[Feature, ...] = tuple(
    import_module(f"{__name__}.{name}").FEATURE for name in _NAMES
)
