"""Public API for plugin authors; everything else in this package is its own business.

Everything is imported when it is first used: `tornado-idv --help` and the client need little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tornado_idv import mapping, strict_json, trace_context, yaml_loader
    from tornado_idv.backend import Backend, BackendOptions
    from tornado_idv.commands import CommandTools, Exit, LoadedConfig, printable
    from tornado_idv.daemon_thread import DaemonThread
    from tornado_idv.errors import (
        Broken,
        ConfigError,
        IdvError,
        InvalidFormat,
        KeyStoreError,
        LookupFailed,
        MissingKeyStoreError,
        Problem,
        StartError,
        Unavailable,
        UncertainChangeError,
        format_traceback,
    )
    from tornado_idv.fault import Fault
    from tornado_idv.files import FileSignature, load_certificate, require_file
    from tornado_idv.hookspecs import hookimpl
    from tornado_idv.keys.location import KeyStoreLocation
    from tornado_idv.model import (
        Answer,
        BackendResult,
        ByCard,
        ByNickname,
        Query,
        SharedAnswer,
        User,
    )
    from tornado_idv.options import (
        ConfigPath,
        Duration,
        Options,
        Pattern,
        Secret,
        Size,
        WholeNumber,
    )
    from tornado_idv.shared import (
        LimitUse,
        Purge,
        SharedCache,
        SharedCacheOptions,
        SharedLimits,
        SharedLimitsOptions,
        SharedResult,
    )
    from tornado_idv.user_store import ImportResult, NumberedUser, ReviewImport, UserStore

_MODULES = {
    "Answer": "model",
    "Backend": "backend",
    "BackendOptions": "backend",
    "BackendResult": "model",
    "Broken": "errors",
    "ByCard": "model",
    "ByNickname": "model",
    "CommandTools": "commands",
    "ConfigError": "errors",
    "ConfigPath": "options",
    "DaemonThread": "daemon_thread",
    "Duration": "options",
    "Exit": "commands",
    "Fault": "fault",
    "FileSignature": "files",
    "IdvError": "errors",
    "ImportResult": "user_store",
    "InvalidFormat": "errors",
    "KeyStoreError": "errors",
    "KeyStoreLocation": "keys.location",
    "LimitUse": "shared",
    "LoadedConfig": "commands",
    "LookupFailed": "errors",
    "MissingKeyStoreError": "errors",
    "NumberedUser": "user_store",
    "Options": "options",
    "Pattern": "options",
    "Problem": "errors",
    "Purge": "shared",
    "Query": "model",
    "ReviewImport": "user_store",
    "Secret": "options",
    "SharedAnswer": "model",
    "SharedCache": "shared",
    "SharedCacheOptions": "shared",
    "SharedLimits": "shared",
    "SharedLimitsOptions": "shared",
    "SharedResult": "shared",
    "Size": "options",
    "StartError": "errors",
    "Unavailable": "errors",
    "UncertainChangeError": "errors",
    "User": "model",
    "UserStore": "user_store",
    "WholeNumber": "options",
    "format_traceback": "errors",
    "hookimpl": "hookspecs",
    "load_certificate": "files",
    "printable": "commands",
    "require_file": "files",
}
"""Modules of the names."""

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
    "DaemonThread",
    "Duration",
    "Exit",
    "Fault",
    "FileSignature",
    "IdvError",
    "ImportResult",
    "InvalidFormat",
    "KeyStoreError",
    "KeyStoreLocation",
    "LimitUse",
    "LoadedConfig",
    "LookupFailed",
    "MissingKeyStoreError",
    "NumberedUser",
    "Options",
    "Pattern",
    "Problem",
    "Purge",
    "Query",
    "ReviewImport",
    "Secret",
    "SharedAnswer",
    "SharedCache",
    "SharedCacheOptions",
    "SharedLimits",
    "SharedLimitsOptions",
    "SharedResult",
    "Size",
    "StartError",
    "Unavailable",
    "UncertainChangeError",
    "User",
    "UserStore",
    "WholeNumber",
    "format_traceback",
    "hookimpl",
    "load_certificate",
    "mapping",
    "printable",
    "require_file",
    "strict_json",
    "trace_context",
    "yaml_loader",
]

if not TYPE_CHECKING:  # for a type checker it would make every name valid

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        elif name in __all__:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value
