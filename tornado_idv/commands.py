"""What plugins make commands of `tornado-idv` with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from tornado_idv.backend import BackendOptions
from tornado_idv.model import Query


class Exit(IntEnum):
    """What a command's exit code says."""

    DONE = 0
    NO = 1
    WRONG_USE = 2
    COULD_NOT_TELL = 3


@dataclass(frozen=True)
class LoadedConfig:
    """What a configuration file says that a plugin's command may need.

    ``backends`` are the options of each, in order. ``parse`` reads what a person types for
    a nickname, a profile URL or a card number, and raises `InvalidFormat`. ``ttl`` and
    ``negative_ttl`` are for how many seconds a user and "not found" are remembered.
    """

    backends: Sequence[BackendOptions]
    parse: Callable[[str], Query]
    ttl: float
    negative_ttl: float


class ErrorReporter(Protocol):
    """Prints an error of ours, raised within, and exits with ``code``."""

    def __call__(self, code: Exit, *, as_json: bool = False) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class CommandTools:
    """What all commands share, so that a plugin's look and end like the others.

    ``config_option`` and ``json_option`` decorate a command, which then takes ``config_path``
    and ``as_json``. ``read`` reads a configuration file, and raises `StartError`.
    """

    config_option: Callable[[Any], Any]
    json_option: Callable[[Any], Any]
    read: Callable[[Path], LoadedConfig]
    exit_on_error: ErrorReporter
