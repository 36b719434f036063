"""What plugin authors import; everything else in this package is its own business."""

from tornado_idv import strict_json, yaml_loader
from tornado_idv.backend import Backend, BackendOptions
from tornado_idv.commands import CommandTools, Exit, LoadedConfig, printable
from tornado_idv.errors import (
    Broken,
    ConfigError,
    IdvError,
    InvalidFormat,
    LookupFailed,
    Problem,
    StartError,
    Unavailable,
    format_traceback,
)
from tornado_idv.files import FileSignature
from tornado_idv.hookspecs import hookimpl
from tornado_idv.model import Answer, BackendResult, ByCard, ByNickname, Query, User
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
    "BackendResult",
    "Broken",
    "ByCard",
    "ByNickname",
    "CommandTools",
    "ConfigError",
    "ConfigPath",
    "Duration",
    "Exit",
    "FileSignature",
    "IdvError",
    "InvalidFormat",
    "LoadedConfig",
    "LookupFailed",
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
    "format_traceback",
    "hookimpl",
    "printable",
    "strict_json",
    "yaml_loader",
]
