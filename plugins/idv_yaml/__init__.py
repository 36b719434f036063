"""Users from a YAML fixture, reloaded when it is edited: the kind ``yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tornado_idv import hookimpl

if TYPE_CHECKING:
    from idv_yaml.backend import YamlBackend


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[YamlBackend]]:
    """Provide the kind ``yaml``."""
    from idv_yaml.backend import YamlBackend  # noqa: PLC0415 - not for `--help`

    return {"yaml": YamlBackend}
