"""Loads the configuration for a command, with the installed plugins."""

from __future__ import annotations

import os
from pathlib import Path

import pluggy

from tornado_idv.config.load import load, reference_values
from tornado_idv.config.settings import Settings
from tornado_idv.errors import Broken, InvalidFormat
from tornado_idv.identifiers import fold_case
from tornado_idv.interfaces.command_tools import LoadedConfig
from tornado_idv.lookup.guard import check_text
from tornado_idv.model import ByCard, ByNickname, Query, User
from tornado_idv.registry import installed_kinds, plugin_manager


def load_settings(path: Path) -> tuple[Settings, pluggy.PluginManager]:
    """The settings of a file, and the plugins that gave them their kinds of backend.

    Raises `StartError`, and its `ConfigError` with everything that is wrong.
    """
    manager = plugin_manager()
    return load(path, installed_kinds(manager), os.environ), manager


def read_config(path: Path) -> LoadedConfig:
    """The configuration for a plugin's command; raises as `load_settings` does."""
    settings, _ = load_settings(path)
    parse = settings.make_identifiers().parse_any
    fold = fold_case if settings.identifiers.nickname_case == "fold" else str

    def check_user(user: User, query: Query) -> None:
        nickname = fold(user.nickname)
        try:
            both = parse(f"@{nickname}"), parse(user.card_number)
        except InvalidFormat as error:
            raise Broken(f"the user is in no valid format: {error}; see identifiers") from None
        if both != (ByNickname(nickname), ByCard(user.card_number)) or query not in both:
            text = "response is for another user than requested; nickname_case may be the reason"
            raise Broken(text)
        check_text(user)

    return LoadedConfig(
        backends=settings.backends,
        parse=parse,
        check_user=check_user,
        ttl=settings.cache.ttl,
        negative_ttl=settings.cache.negative_ttl,
        reference_values=reference_values(path, os.environ),
    )
