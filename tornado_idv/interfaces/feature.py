"""A feature: an optional part of the service, in its folder below ``features/``."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """Everything that one feature adds to the service.

    Each addition is named by its place, ``"package.module:name"``, and imported on first use.
    """

    name: str
    """The name of the feature's folder."""
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Commands of ``tornado-idv`` by name: the place and the summary of each command."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Places of models, by section of the configuration, such as ``server``. The fields of a model
    are added to the section."""
    routes: str | None = None
    """A function that returns the feature's `Route`s. Its arguments are the `Settings`, and the
    routes of the core and of the preceding `FEATURES`."""
    admin_routes: str | None = None
    """An asynchronous context manager, open while the admin listener is open. Its arguments are the
    `Operations` and the settings of the Tornado application. It yields a mapping from paths to
    handlers. For a path of the core, the feature's handler replaces the core's handler."""
    events: str | None = None
    """A function that takes the environment of the process, and returns a `Listener`."""
    part: str | None = None
    """A function that takes a `Running` service, and returns the feature's `Part`. The result is
    ``None`` if the settings do not use the feature."""
    status: str | None = None
    """A function that takes a `Report`, and returns the members to add to ``/health/ready?verbose``
    and ``/status.json``."""
    metrics: str | None = None
    """A function that takes a `Report`, and returns the metrics to add."""
    users_changed: str | None = None
    """A function called before and after ``tornado-idv users import`` changes users. Its argument
    is the `BackendOptions` of their backend. It may refuse the change by `StartError`."""
    announce: str | None = None
    """A function that returns lines to print after the start of the service. Its arguments are the
    `Settings` and a `ServiceInfo`."""
