"""Finds what opens the key store that ``auth.store`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import SecretStr

from tornado_idv.errors import KeyStoreError
from tornado_idv.keys.location import KeyStoreLocation
from tornado_idv.keys.store_file import KeyStoreFile

Offered = Mapping[str, Callable[[SecretStr], KeyStoreLocation]]
"""Key store factories of plugins, by URL scheme."""


def locate_store(setting: Path | SecretStr, offered: Offered) -> KeyStoreLocation:
    """Return the place of a key store, which is not opened.

    Raises `KeyStoreError` for a URL that no plugin opens, and `StartError` for a broken plugin.
    """
    if isinstance(setting, Path):
        return KeyStoreFile(setting)
    scheme, _, _ = setting.get_secret_value().partition("://")
    if scheme not in offered:
        known = ", ".join(f"{each}://" for each in sorted(offered)) or "none"
        raise KeyStoreError(f"no plugin opens a key store at such a URL; there are: {known}")
    return offered[scheme](setting)
