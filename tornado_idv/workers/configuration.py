"""The configuration with which processes are started."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

import pluggy

from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.files import FileSignature
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.reload_result import ReloadResult
from tornado_idv.service.limiters import Limiters
from tornado_idv.service.reload import applicable, failure


@dataclass
class Configuration:
    """A file and its settings, the plugins, and the rate limits, whose counts all share.

    Processes with another ``generation`` have another configuration.
    """

    file: ConfigFile
    settings: Settings
    plugins: pluggy.PluginManager
    kinds: Kinds
    limiters: Limiters
    generation: int = 0

    def use(self, content: str, signature: list[int]) -> ReloadResult:
        """Start processes with another content of the file from now on, if it is valid."""
        read = FileSignature(*signature)
        file = replace(self.file, content=content.encode(), signature=read, named={})
        try:
            settings = file.load(self.kinds, os.environ)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return failure(error, time.time())
        self.settings, needs_restart = applicable(self.settings, settings)
        self.file = file
        self.limiters.configure(self.settings.limits)
        self.generation += 1
        return ReloadResult(time.time(), needs_restart)
