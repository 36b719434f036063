"""A reload of the configuration, as the admin listener asks for it and reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

INVALID = "invalid_configuration"
FAILED = "reload_failed"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """Result of a reload, ``at`` a Unix time.

    After success, ``needs_restart`` are the settings that differ from those the service was
    started with, and take effect when it is started again. After a failure the old configuration
    is still in force: ``code`` is `INVALID` or `FAILED`, and ``problems`` say what is wrong.
    """

    at: float
    needs_restart: tuple[str, ...] = ()
    code: str | None = None
    problems: tuple[str, ...] = ()


class Reloads(Protocol):
    """Reloads the configuration; ``last`` is the last result, if there is one."""

    last: ReloadResult | None

    async def reload(self, trigger: str, **audited: str | None) -> ReloadResult:
        """Reload, after a reload that is running; the audit log gets the arguments."""
