"""The address of the admin listener, whether or not the rest of `config.yaml` is right.

A command that asks the running service needs no more, and must work while the file is being edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tornado_idv.config.load import ConfigFile
from tornado_idv.config.references import Resolved
from tornado_idv.config.settings import AdminSettings
from tornado_idv.errors import StartError


class _AdminPart(BaseModel):
    admin: AdminSettings | None = None


def load_admin_settings(path: Path, environ: Mapping[str, str]) -> AdminSettings | None:
    """Return these settings of the file at ``path``; other settings are ignored.

    Raises `ConfigError` if the file is not YAML, and `StartError` if it cannot be read or these
    settings are not valid.
    """
    tree = Resolved(ConfigFile.read(path).tree(), str(path), path.absolute().parent, environ).tree
    try:
        return _AdminPart.model_validate(tree).admin
    except ValidationError:
        raise StartError(f"{path}: admin is not valid; see tornado-idv check") from None
