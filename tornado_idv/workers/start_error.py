"""A `StartError` on its way from a process to its supervisor."""

from __future__ import annotations

from msgspec import convert

from tornado_idv.errors import ConfigError, Problem, SettingError, StartError
from tornado_idv.workers.control import Message

_MAX_PROBLEMS = ConfigError.MAX_LINES + 1
"""So many that the text says that there are more; all of them may be too long for a message."""


def to_record(error: StartError) -> Message:
    """Return an error as JSON has it."""
    return {
        "message": str(error),
        "steps": error.steps if isinstance(error, SettingError) else (),
        "problems": error.problems[:_MAX_PROBLEMS] if isinstance(error, ConfigError) else (),
    }


def from_record(record: Message) -> StartError:
    """Return the error that `to_record` described."""
    if record["problems"]:
        return ConfigError(*convert(record["problems"], list[Problem]))
    if record["steps"]:
        return SettingError(record["message"], *record["steps"])
    return StartError(record["message"])
