"""Tools for the commands of plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the module imports pydantic and msgspec, which would slow `--help`
    from tornado_idv.interfaces.backend import BackendOptions


class Exit(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    NO = 1
    WRONG_USE = 2
    UNDETERMINED = 3


@dataclass(frozen=True)
class CommandTools:
    """The options and the error output of built-in commands, for the commands of plugins.

    ``config_option`` and ``json_option`` are decorators. They add the parameters ``config_path``
    and ``as_json``. ``read_backends`` returns the options of the backends in a configuration
    file, in order; it raises `StartError`.
    ``exit_on_error(code, as_json=False)`` is a context manager. If its block raises an `IdvError`,
    it prints the error and exits with ``code``.
    """

    config_option: Callable[[Any], Any]
    json_option: Callable[[Any], Any]
    read_backends: Callable[[Path], Sequence[BackendOptions]]
    exit_on_error: Callable[..., AbstractContextManager[None]]


def printable(line: str) -> str:
    """Return the line with control characters escaped, because a terminal would obey them.

    Line breaks are escaped, too, so no value can look like a separate line.
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
