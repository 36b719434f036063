"""What plugin authors import; everything else in this package is its own business."""

from tornado_idv import strict_json, yaml_loader
from tornado_idv.backend import Backend, BackendOptions
from tornado_idv.commands import CommandTools, Configured, Exit, printable
from tornado_idv.errors import (
    Broken,
    ConfigError,
    CouldNotTell,
    IdvError,
    InvalidFormat,
    Problem,
    StartError,
    Unavailable,
    trace,
)
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, ByCard, ByNickname, Query, User
from tornado_idv.options import (
    ConfigPath,
    Duration,
    Options,
    Pattern,
    Secret,
    Size,
    WholeNumber,
)

__all__ = [
    "Answer",
    "Backend",
    "BackendOptions",
    "Broken",
    "ByCard",
    "ByNickname",
    "CommandTools",
    "ConfigError",
    "ConfigPath",
    "Configured",
    "CouldNotTell",
    "Duration",
    "Exit",
    "IdvError",
    "InvalidFormat",
    "Options",
    "Pattern",
    "Problem",
    "Query",
    "Secret",
    "Size",
    "StartError",
    "Unavailable",
    "User",
    "WholeNumber",
    "hookimpl",
    "printable",
    "strict_json",
    "trace",
    "yaml_loader",
]
