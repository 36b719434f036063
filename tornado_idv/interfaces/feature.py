"""A feature: what the service can do without, in a folder of its own below ``features/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """Everything that one feature adds to the service.

    All of it is named by its place, ``"package.module:name"``, and imported when it is used.
    """

    name: str
    """The name of its folder."""
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Commands of ``tornado-idv`` by name: the place and a summary."""
    key_commands: Sequence[str] = ()
    """The places of commands of ``tornado-idv keys``."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings by the section of the configuration that they belong to, such as ``server``: the
    place of a model with these fields."""
    routes: str | None = None
    """The place of a function that returns the `Route`s of some `Settings`. Its second argument are
    the routes of the core and of the features before."""
    admin_routes: str | None = None
    """The place of an asynchronous context manager, open while the admin listener is. Of the
    `Operations` and the settings of its application it yields handlers by path, which may replace
    those of the core."""
    events: str | None = None
    """The place of a function that returns the `Listener` of an environment."""
    part: str | None = None
    """The place of a function that returns the `Part` of a `Running` service, or ``None`` if its
    settings need none."""
    status: str | None = None
    """The place of a function that returns the members of ``/status.json`` for a `Report`."""
    metrics: str | None = None
    """The place of a function that returns the metrics for a `Report`."""
    users_changed: str | None = None
    """The place of a function that is called before and after ``tornado-idv users import`` changes
    the users of a backend with its `BackendOptions`; it may refuse that by `StartError`."""
    announce: str | None = None
    """The place of a function that returns lines for the operator about a `ListeningService` with
    some `Settings`; both are its arguments."""
