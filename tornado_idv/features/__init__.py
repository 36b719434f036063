"""The list of the features of this service.

To remove a feature, delete its folder and its line here.
"""

from collections.abc import Mapping
from importlib import import_module

from tornado_idv.interfaces.feature import Feature

_NAMES = (
    "admin_commands",
    "batch",
    "check",
    "status",
    "docs",
    "verify",
    "double",
    "keys",
    "lookup",
    "reconcile",
    "shadow",
    "shared_cache",
    "snapshot",
    "systemd",
    "users",
)
"""Folders of the features. The service starts their parts and adds their routes in this order."""

FEATURES: tuple[Feature, ...] = tuple(
    import_module(f"{__name__}.{name}").FEATURE for name in _NAMES
)

_SETTINGS = {
    "backends.shadow": "shadow",
    "cache.snapshot": "snapshot",
    "cache.snapshot_interval": "snapshot",
    "server.docs": "docs",
    "server.verify": "verify",
    "shared_cache": "shared_cache",
}
MISSING: Mapping[str, str] = {
    setting: f"needs the feature {name}, missing in this installation"
    for setting, name in _SETTINGS.items()
    if name not in _NAMES
}
"""Error message for each setting of a removed feature, by path, such as ``backends.shadow``."""
