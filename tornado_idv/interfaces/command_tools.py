"""Tools for the commands that plugins add to ``tornado-idv``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they need pydantic and msgspec, which `--help` does not
    from tornado_idv.interfaces.backend import BackendOptions
    from tornado_idv.model import Query, User


class Exit(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    NO = 1
    WRONG_USE = 2
    UNDETERMINED = 3


@dataclass(frozen=True)
class LoadedConfig:
    """Parts of a configuration file for the commands of plugins.

    ``backends`` are the options of each, in order. ``parse`` reads what a person types for
    a nickname, a profile URL or a card number, and raises `InvalidFormat`. ``check_user``
    raises `Broken` for a user that the service rejects, whichever backend found it. ``ttl`` and
    ``negative_ttl`` are for how many seconds a user and "not found" are remembered.
    ``reference_values`` are the texts that ``${env:NAME}`` and ``${file:path}`` stand for;
    a command must not print them.
    """

    backends: Sequence[BackendOptions]
    parse: Callable[[str], Query]
    check_user: Callable[[User, Query], None]
    ttl: float
    negative_ttl: float
    reference_values: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True)
class CommandTools:
    """Common parts of all commands, so that those of plugins behave like ours.

    ``config_option`` and ``json_option`` are decorators that add the parameters ``config_path``
    and ``as_json``. ``read`` loads a configuration file; it raises `StartError`.
    ``exit_on_error(code, as_json=False)`` prints an error of ours, raised within, and exits.
    """

    config_option: Callable[[Any], Any]
    json_option: Callable[[Any], Any]
    read: Callable[[Path], LoadedConfig]
    exit_on_error: Callable[..., AbstractContextManager[None]]


def printable(line: str) -> str:
    """Escape what a terminal cannot show in a line, or would obey: control characters.

    For a line break within a value too, so that no value can look like a line of its own.
    """
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return shown.encode("utf-8", "backslashreplace").decode()
