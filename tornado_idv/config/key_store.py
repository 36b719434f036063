"""What the commands for keys need of `config.yaml`, whether or not the rest of it is right.

The rest may refer to secrets that the operator who issues keys does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.references import Resolved
from tornado_idv.errors import ConfigError, StartError
from tornado_idv.files import read_file
from tornado_idv.options import ConfigPath


class _Key(BaseModel):
    id: str = ""


class _Auth(BaseModel):
    store: ConfigPath | None = None
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
