"""Loads the configuration for a command, with the installed plugins."""

from __future__ import annotations

import os
from pathlib import Path

import pluggy

from tornado_idv.commands import LoadedConfig
from tornado_idv.config.load import load, reference_values
from tornado_idv.config.settings import Settings
from tornado_idv.registry import backend_kinds, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, backend_kinds(manager), os.environ), manager


def read_config(path: Path) -> LoadedConfig:
    """The configuration for a plugin's command; raises as `load_settings` does."""
    settings, _ = load_settings(path)
    return LoadedConfig(
        backends=settings.backends,
        parse=settings.make_identifiers().parse_any,
        ttl=settings.cache.ttl,
        negative_ttl=settings.cache.negative_ttl,
        reference_values=reference_values(path, os.environ),
    )
