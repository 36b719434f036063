"""What a backend of kind ``yaml`` takes in ``config.yaml``."""

from __future__ import annotations

from tornado_idv import BackendOptions, ConfigPath


class YamlOptions(BackendOptions):
    """A fixture file, and whether its edits count."""

    path: ConfigPath
    """The fixture; a relative path is relative to the folder of the configuration file."""
    watch: bool = True
    """Whether the file is read anew when it changes."""
