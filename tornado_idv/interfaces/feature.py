"""A feature: an optional part of the service, in its folder below ``features/``."""

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
    """Settings by their section of the configuration, such as ``server``: the place of a model with
    these fields."""
    routes: str | None = None
    """The place of a function that returns the `Route`s for some `Settings`. Its second argument is
    the list of the routes of the core and of earlier features."""
    admin_routes: str | None = None
    """The place of an asynchronous context manager, open while the admin listener is open. Its
    arguments are the `Operations` and the settings of the application. It yields handlers by path,
    some of which may replace handlers of the core."""
    events: str | None = None
    """The place of a function that returns the `Listener` of an environment."""
    part: str | None = None
    """The place of a function that returns the `Part` of a `Running` service, or ``None`` if its
    settings do not use the feature."""
    status: str | None = None
    """The place of a function that returns the members of ``/status.json`` for a `Report`."""
    metrics: str | None = None
    """The place of a function that returns the metrics for a `Report`."""
    users_changed: str | None = None
    """The place of a function, called before and after ``tornado-idv users import`` changes users,
    with the `BackendOptions` of their backend. It may refuse the change by `StartError`."""
    announce: str | None = None
    """The place of a function that returns lines for the operator about a `ServiceInfo` with
    some `Settings`; both are its arguments."""
