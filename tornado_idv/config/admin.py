"""The settings of the admin listener, which commands read without the rest of `config.yaml`.

A command that asks the running service needs no more, and must work while the file is being edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.references import Resolved
from tornado_idv.config.types import Host
from tornado_idv.errors import StartError
from tornado_idv.files import read_file
from tornado_idv.options import Options, WholeNumber


class AdminSettings(Options):
    """The operator's listener; unless it is on loopback, requests need a key with scope admin."""

    host: Host = "127.0.0.1"
    """The address or host name to listen on."""
    port: Annotated[WholeNumber, Field(ge=0, le=65535)] = 8081
    """The port to listen on; 0 takes any free port."""


class _AdminPart(BaseModel):
    admin: AdminSettings | None = None


def load_admin_settings(path: Path, environ: Mapping[str, str]) -> AdminSettings | None:
    """Return these settings of the file at ``path``; other settings are ignored.

    Raises `ConfigError` if the file is not YAML, and `StartError` if it cannot be read or these
    settings are not valid.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None
    tree = yaml_loader.read(content, str(path))
    resolved = Resolved(tree, str(path), path.absolute().parent, environ)
    try:
        return _AdminPart.model_validate(resolved.tree).admin
    except ValidationError:
        raise StartError(f"{path}: admin is not valid; see tornado-idv check") from None
