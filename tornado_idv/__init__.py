"""The public API for authors of plugins. All other names in this package are private.

Names are imported on first use, because `tornado-idv --help` and the client need few of them.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tornado_idv import strict_json as strict_json
    from tornado_idv import trace_context as trace_context
    from tornado_idv import yaml_loader as yaml_loader
    from tornado_idv.daemon_thread import DaemonThread as DaemonThread
    from tornado_idv.double.fault import Fault as Fault
    from tornado_idv.errors import Broken as Broken
    from tornado_idv.errors import ConfigError as ConfigError
    from tornado_idv.errors import DegradedStartError as DegradedStartError
    from tornado_idv.errors import IdvError as IdvError
    from tornado_idv.errors import InvalidFormat as InvalidFormat
    from tornado_idv.errors import KeyStoreError as KeyStoreError
    from tornado_idv.errors import LookupFailed as LookupFailed
    from tornado_idv.errors import MissingKeyStoreError as MissingKeyStoreError
    from tornado_idv.errors import Problem as Problem
    from tornado_idv.errors import StartError as StartError
    from tornado_idv.errors import Unavailable as Unavailable
    from tornado_idv.errors import UncertainChangeError as UncertainChangeError
    from tornado_idv.errors import format_traceback as format_traceback
    from tornado_idv.files import FileSignature as FileSignature
    from tornado_idv.files import load_certificate as load_certificate
    from tornado_idv.files import require_file as require_file
    from tornado_idv.interfaces.backend import Backend as Backend
    from tornado_idv.interfaces.backend import BackendOptions as BackendOptions
    from tornado_idv.interfaces.command_tools import CommandTools as CommandTools
    from tornado_idv.interfaces.command_tools import Exit as Exit
    from tornado_idv.interfaces.command_tools import printable as printable
    from tornado_idv.interfaces.hookspecs import Kinds as Kinds
    from tornado_idv.interfaces.hookspecs import hookimpl as hookimpl
    from tornado_idv.interfaces.shared import Purge as Purge
    from tornado_idv.interfaces.shared import SharedCache as SharedCache
    from tornado_idv.interfaces.shared import SharedCacheOptions as SharedCacheOptions
    from tornado_idv.interfaces.shared import SharedResult as SharedResult
    from tornado_idv.interfaces.user_store import StoredRow as StoredRow
    from tornado_idv.interfaces.user_store import UserStore as UserStore
    from tornado_idv.interfaces.user_store import UserTransaction as UserTransaction
    from tornado_idv.keys.store import KeyStoreLocation as KeyStoreLocation
    from tornado_idv.kit import mapping as mapping
    from tornado_idv.kit.masking import Masker as Masker
    from tornado_idv.model import Answer as Answer
    from tornado_idv.model import BackendResult as BackendResult
    from tornado_idv.model import ByCard as ByCard
    from tornado_idv.model import ByNickname as ByNickname
    from tornado_idv.model import Query as Query
    from tornado_idv.model import SharedAnswer as SharedAnswer
    from tornado_idv.model import Step as Step
    from tornado_idv.model import User as User
    from tornado_idv.options import ConfigPath as ConfigPath
    from tornado_idv.options import Duration as Duration
    from tornado_idv.options import Options as Options
    from tornado_idv.options import Password as Password
    from tornado_idv.options import Pattern as Pattern
    from tornado_idv.options import Percentage as Percentage
    from tornado_idv.options import Secret as Secret
    from tornado_idv.options import SecretUrl as SecretUrl
    from tornado_idv.options import Size as Size
    from tornado_idv.options import WholeNumber as WholeNumber

_NAMES = {
    "daemon_thread": "DaemonThread",
    "double.fault": "Fault",
    "errors": "Broken ConfigError DegradedStartError IdvError InvalidFormat KeyStoreError "
    "LookupFailed MissingKeyStoreError Problem StartError Unavailable UncertainChangeError "
    "format_traceback",
    "files": "FileSignature load_certificate require_file",
    "interfaces.backend": "Backend BackendOptions",
    "interfaces.command_tools": "CommandTools Exit printable",
    "interfaces.hookspecs": "Kinds hookimpl",
    "interfaces.shared": "Purge SharedCache SharedCacheOptions SharedResult",
    "interfaces.user_store": "StoredRow UserStore UserTransaction",
    "keys.store": "KeyStoreLocation",
    "kit.masking": "Masker",
    "model": "Answer BackendResult ByCard ByNickname Query SharedAnswer Step User",
    "options": "ConfigPath Duration Options Password Pattern Percentage Secret SecretUrl Size "
    "WholeNumber",
}
"""The public names of each module. Type checkers read the imports above instead."""
_PLACES = {each: f"{module}:{each}" for module, names in _NAMES.items() for each in names.split()}
for _each in ("kit.mapping", "strict_json", "trace_context", "yaml_loader"):
    _PLACES[_each.rpartition(".")[2]] = f"{_each}:"

if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name
    __all__ = list(_PLACES)

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = resolve_name(f"{__name__}.{_PLACES[name]}")
        return value
