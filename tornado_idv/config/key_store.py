"""Settings of `config.yaml` for the commands for keys, whether or not the rest of it is right.

The rest may refer to secrets that the operator who issues keys does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.references import Resolved
from tornado_idv.errors import ConfigError, StartError
from tornado_idv.files import read_file
from tornado_idv.keys.token import digest, is_token68
from tornado_idv.options import KeyStoreAddress


class _Key(BaseModel):
    id: str = ""
    sha256: str = Field("", repr=False)
    token: str = Field("", repr=False)

    @property
    def digest(self) -> bytes | None:
        """The digest of the token; ``None`` where it refers to what this user cannot read."""
        if re.fullmatch("[0-9A-Fa-f]{64}", self.sha256):
            return bytes.fromhex(self.sha256)
        return digest(self.token) if is_token68(self.token) else None


class _Auth(BaseModel):
    store: KeyStoreAddress | None = None
    keys: tuple[_Key, ...] = ()


class _Logging(BaseModel):
    format: Literal["auto", "console", "json"] = "auto"


class KeyStoreSettings(BaseModel):
    """The part of the configuration that is read; other settings are ignored."""

    auth: _Auth = _Auth()
    logging: _Logging = _Logging()


def load_key_store_settings(path: Path, environ: Mapping[str, str]) -> KeyStoreSettings:
    """Return these settings of the file at ``path``.

    Raises `ConfigError` if ``auth.store`` refers to what is missing, and `StartError` if the
    file cannot be read or these settings are not valid.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from None
    base_dir = path.absolute().parent
    resolved = Resolved(yaml_loader.read(content, str(path)), str(path), base_dir, environ)
    wrong = (*resolved.absent, *resolved.invalid)
    if problems := [each for each in wrong if each.path == "auth.store"]:
        raise ConfigError(*problems)
    try:
        return KeyStoreSettings.model_validate(resolved.tree, context={"base_dir": base_dir})
    except ValidationError:
        raise StartError(f"{path}: auth or logging is not valid; see tornado-idv check") from None
