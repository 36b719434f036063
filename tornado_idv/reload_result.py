"""The result of a reload of the configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

INVALID = "invalid_configuration"
FAILED = "reload_failed"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload at the Unix time ``at``.

    After success, ``needs_restart`` contains the changed settings that take effect only after a
    restart. After a failure, the old configuration stays effective: ``code`` is `INVALID` or
    `FAILED`, and ``problems`` contains the reasons.
    """

    at: float = field(default_factory=time.time)
    needs_restart: tuple[str, ...] = ()
    code: str | None = None
    problems: tuple[str, ...] = ()
