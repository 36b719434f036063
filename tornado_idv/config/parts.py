"""Parts of `config.yaml` for single commands. The rest of the file may be wrong.

It may refer to secrets that the operator cannot read, or be in the middle of an edit while a
command queries the running service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.references import Resolved
from tornado_idv.config.types import Host
from tornado_idv.errors import ConfigError, StartError
from tornado_idv.files import require_file
from tornado_idv.keys.token import digest, is_token68
from tornado_idv.options import KeyStoreAddress, Options, WholeNumber


class AdminSettings(Options):
    """The operator's listener; unless it is on loopback, requests need a key with scope admin."""

    host: Host = "127.0.0.1"
    """The address or host name to listen on."""
    port: Annotated[WholeNumber, Field(ge=0, le=65535)] = 8081
    """The port to listen on; 0 takes any free port."""


class _Key(BaseModel):
    id: str = ""
    sha256: str = Field("", repr=False)
    token: str = Field("", repr=False)

    @property
    def digest(self) -> bytes | None:
        """The digest of the token; ``None`` for a reference that this user cannot read."""
        if re.fullmatch("[0-9A-Fa-f]{64}", self.sha256):
            return bytes.fromhex(self.sha256)
        return digest(self.token) if is_token68(self.token) else None


class _Auth(BaseModel):
    store: KeyStoreAddress | None = None
    keys: tuple[_Key, ...] = ()


class _Backend(BaseModel):
    name: str = ""


class _Logging(BaseModel):
    format: Literal["auto", "console", "json"] = "auto"


class Parts(BaseModel):
    """The settings read by single commands."""

    admin: AdminSettings | None = None
    auth: _Auth = _Auth()
    backends: tuple[_Backend, ...] = ()
    logging: _Logging = _Logging()


def load_parts(path: Path, environ: Mapping[str, str], *names: str) -> Parts:
    """Return the settings with these names of the file at ``path``; others have their defaults.

    Raises `ConfigError` if the file is not YAML, and for an unresolved reference in ``auth.store``
    if ``auth`` is one of the names.
    Raises `StartError` if the file cannot be read or these settings are not valid.
    """
    resolved = Resolved(yaml_loader.read(require_file(path), str(path)), path, environ)
    if "auth" in names:
        wrong = (*resolved.absent, *resolved.invalid)
        if problems := [each for each in wrong if each.path == "auth.store"]:
            raise ConfigError(*problems)
    try:
        parts = {name: resolved.tree[name] for name in names if name in resolved.tree}
        return Parts.model_validate(parts, context={"base_dir": resolved.base_dir})
    except (ValidationError, TypeError):
        name = " or ".join(names)
        raise StartError(f"{path}: {name} is not valid; see tornado-idv check") from None
