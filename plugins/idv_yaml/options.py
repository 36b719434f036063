"""The options of a backend of the kind ``yaml``."""

from __future__ import annotations

from tornado_idv import BackendOptions, ConfigPath


class YamlOptions(BackendOptions):
    """The options of the kind ``yaml``, beside those of every backend."""

    path: ConfigPath
    """The fixture; a relative path is relative to the folder of the configuration file."""
    watch: bool = True
    """Whether the file is reloaded when it changes."""
