"""Users from a YAML fixture, reloaded when it is edited: the kind ``yaml``."""

from __future__ import annotations

from collections.abc import Mapping

from tornado_idv import hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``yaml``."""
    return {"yaml": "idv_yaml.backend:YamlBackend"}
