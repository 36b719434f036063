"""Loads the configuration for a command, with the installed plugins, and finds a backend in it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
import pluggy

from tornado_idv.config.load import load
from tornado_idv.config.settings import Settings
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.registry import installed_kinds, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, installed_kinds(manager), os.environ), manager


def backend_named(backends: Iterable[BackendOptions], name: str) -> BackendOptions:
    """Return a backend's options; raises `click.UsageError` for an unknown name."""
    by_name = {each.name: each for each in backends}
    if name not in by_name:
        names = ", ".join(by_name)
        raise click.UsageError(f"no backend has the name {name}; there are: {names}")
    return by_name[name]
