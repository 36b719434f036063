"""Users from a YAML fixture, reloaded when it is edited: the kind ``yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from idv_yaml.backend import YamlBackend
from tornado_idv import Backend, hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[Backend[Any]]]:
    return {"yaml": YamlBackend}
