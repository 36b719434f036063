"""Reads single sections of `config.yaml`, for commands that need no more of the file.

The rest of the file may be invalid, for example because the operator cannot read a secret in it, or
is editing the file.
"""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.references import Resolved
from tornado_idv.errors import ConfigError, StartError
from tornado_idv.files import require_file

ModelT = TypeVar("ModelT", bound=BaseModel)


def load_parts(path: Path, parts: type[ModelT], *, needed: str = "") -> ModelT:
    """Return the sections of the file at ``path`` that are fields of the model ``parts``.

    Raises `StartError` if the file cannot be read or these sections are not valid. Raises
    `ConfigError` if the file is not YAML or a ``${…}`` in the setting ``needed`` is unresolved.
    """
    resolved = Resolved(yaml_loader.read(require_file(path), str(path)), path, os.environ)
    if problems := [each for each in (*resolved.absent, *resolved.invalid) if each.path == needed]:
        raise ConfigError(*problems)
    try:
        return parts.model_validate(resolved.tree, context={"base_dir": resolved.base_dir})
    except ValidationError:
        name = " or ".join(parts.model_fields)
        raise StartError(f"{path}: {name} is not valid; see tornado-idv check") from None
