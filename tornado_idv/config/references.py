"""Replaces ``${env:NAME}`` and ``${file:path}`` in values by variables and contents of files.

``$${`` stands for a literal ``${``. References in names of settings are not replaced.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from tornado_idv import yaml_loader
from tornado_idv.config.problems import Steps, dotted, is_safe_to_print
from tornado_idv.errors import Problem
from tornado_idv.files import FileSignature, read_text

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<source>env|file):(?P<name>[^{}]+)\})?")


class Resolved:
    """A copy of a configuration with its references replaced. ``tree`` contains its values.

    If a reference cannot be resolved, the text around it stays unchanged. Relative paths are
    relative to ``base_dir``, the folder of the configuration at ``path``. One newline at the end
    of a file is dropped. ``absent`` are references to unset variables and unreadable files.
    ``invalid`` are references with an error on every machine. ``values`` are the replacements,
    mostly secrets. ``files`` has the signature of each file from before it was read.
    """

    def __init__(self, tree: Any, path: Path, environ: Mapping[str, str]) -> None:
        self.base_dir = path.absolute().parent
        self._file = str(path)
        self._environ = environ
        self.absent: list[Problem] = []
        self.invalid: list[Problem] = []
        self.values: set[str] = set()
        self.files: dict[Path, FileSignature | None] = {}
        self.tree = self._value(tree, ())

    def _value(self, value: Any, path: Steps) -> Any:
        if isinstance(value, yaml_loader.Text):
            return self._text(value, path)
        copy: yaml_loader.Mapping | yaml_loader.Items
        if isinstance(value, yaml_loader.Mapping):
            members = {key: self._value(each, (*path, key)) for key, each in value.items()}
            copy = yaml_loader.Mapping(members)
        else:
            copy = yaml_loader.Items(self._value(each, (*path, i)) for i, each in enumerate(value))
        copy.mark = value.mark
        return copy

    def _text(self, text: yaml_loader.Text, path: Steps) -> yaml_loader.Text:
        is_resolved = True

        def replace(match: re.Match[str]) -> str:
            nonlocal is_resolved
            try:
                return self._replacement(match)
            except (LookupError, ValueError) as error:
                is_resolved = False
                problems = self.absent if isinstance(error, LookupError) else self.invalid
                place = dotted(takewhile(is_safe_to_print, path))
                problems.append(Problem(self._file, *text.mark, place, str(error)))
                return ""

        replaced = yaml_loader.Text(_REFERENCE.sub(replace, text))
        if (whole := _REFERENCE.fullmatch(text)) and whole["source"] == "file":
            replaced = yaml_loader.FileText(replaced)
            replaced.path = self.base_dir / whole["name"]
        replaced.mark = text.mark
        return replaced if is_resolved else text

    def _replacement(self, match: re.Match[str]) -> str:
        """Raises `LookupError` for a variable or a file that is missing on this machine."""
        if match[0] == "$${":
            return "${"
        if match["source"] is None:
            raise ValueError(
                "not a reference; write ${env:NAME}, ${file:path}, or $${ for a literal ${"
            )
        name = match["name"]
        try:
            if match["source"] == "env":
                value = self._environ[name]
            else:
                path = self.base_dir / name
                self.files[path] = FileSignature.find(path)
                value = read_text(path)
        except KeyError:
            raise LookupError(f"the environment variable {name} is not set") from None
        except OSError as error:
            raise LookupError(f"the file {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the file {name} is not UTF-8 text") from None
        self.values.add(value)
        return value
