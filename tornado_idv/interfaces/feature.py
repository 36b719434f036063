"""A feature: what the service can do without, in a folder of its own below ``features/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """What one feature adds to the service.

    Everything is named by its place, ``"package.module:name"``, and imported when it is used.
    """

    name: str
    """The name of its folder."""
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Commands of ``tornado-idv`` by name: the place and a summary."""
    key_commands: Sequence[str] = ()
    """The places of commands of ``tornado-idv keys``."""
