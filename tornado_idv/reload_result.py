"""Result of a reload of the configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

INVALID = "invalid_configuration"
FAILED = "reload_failed"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """Result of a reload; ``at`` is its Unix time.

    After success, ``needs_restart`` has the settings that were changed since the start, and take
    effect only after a restart. After a failure, the old configuration stays effective: ``code``
    is `INVALID` or `FAILED`, and ``problems`` has the reasons.
    """

    at: float = field(default_factory=time.time)
    needs_restart: tuple[str, ...] = ()
    code: str | None = None
    problems: tuple[str, ...] = ()
