"""Loads the configuration for a command, with the installed plugins."""

from __future__ import annotations

import os
from pathlib import Path

import pluggy

from tornado_idv.config.load import load
from tornado_idv.config.settings import Settings
from tornado_idv.registry import installed_kinds, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, installed_kinds(manager), os.environ), manager
