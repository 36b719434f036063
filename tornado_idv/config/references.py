"""``${env:NAME}`` and ``${file:path}`` in values, replaced by what they name.

``$${`` stands for a plain ``${``; names of settings are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tornado_idv import yamltext
from tornado_idv.config.names import Steps, dotted, may_be_told
from tornado_idv.errors import Problem
from tornado_idv.files import read_text

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<source>env|file):(?P<name>[^{}]+)\})?")


class Resolved(NamedTuple):
    """A tree in which references are replaced; those that cannot be stay as they were written.

    ``absent`` are references to variables that are not set and files that cannot be read,
    ``wrong`` are those that would be no good anywhere.
    """

    tree: Any
    absent: list[Problem]
    wrong: list[Problem]


def resolve(tree: Any, file: str, base_dir: Path, environ: Mapping[str, str]) -> Resolved:
    """Replace the references in a copy of the tree.

    A relative path is relative to ``base_dir``; one newline at the end of a file's
    text is dropped.
    """
    resolver = _Resolver(file, base_dir, environ)
    return Resolved(resolver.value(tree, ()), resolver.absent, resolver.wrong)


class _AbsentError(ValueError):
    """A reference to something that is not here, but may be elsewhere."""


def resolved_values(
    tree: Any, file: str, base_dir: Path, environ: Mapping[str, str]
) -> frozenset[str]:
    """Return what references in the tree stand for; most of it is secret."""
    resolver = _Resolver(file, base_dir, environ)
    resolver.value(tree, ())
    return frozenset(resolver.values - {""})


class _Resolver:
    def __init__(self, file: str, base_dir: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._base_dir = base_dir
        self._environ = environ
        self.absent: list[Problem] = []
        self.wrong: list[Problem] = []
        self.values: set[str] = set()

    def value(self, value: Any, path: Steps) -> Any:
        if isinstance(value, yamltext.Text):
            return self._text(value, path)
        copy: yamltext.Mapping | yamltext.Items
        if isinstance(value, yamltext.Mapping):
            copy = yamltext.Mapping(
                {key: self.value(each, (*path, key)) for key, each in value.items()}
            )
        else:
            copy = yamltext.Items(self.value(each, (*path, i)) for i, each in enumerate(value))
        copy.mark = value.mark
        return copy

    def _text(self, text: yamltext.Text, path: Steps) -> yamltext.Text:
        resolved, told = True, dotted(takewhile(may_be_told, path))

        def replace(match: re.Match[str]) -> str:
            nonlocal resolved
            try:
                return self._replacement(match)
            except ValueError as error:
                resolved = False
                problems = self.absent if isinstance(error, _AbsentError) else self.wrong
                problems.append(Problem(self._file, *text.mark, told, str(error)))
                return ""

        whole = _REFERENCE.fullmatch(text)
        replaced = yamltext.Text(_REFERENCE.sub(replace, text))
        if whole is not None and whole["source"] == "file":
            replaced = yamltext.FileText(replaced)
            replaced.path = self._base_dir / whole["name"]
        replaced.mark = text.mark
        return replaced if resolved else text

    def _replacement(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match["source"] is None:
            raise ValueError(
                "not a reference; write ${env:NAME}, ${file:path}, or $${ for a plain ${"
            )
        read = self._variable if match["source"] == "env" else self._content
        value = read(match["name"])
        self.values.add(value)
        return value

    def _variable(self, name: str) -> str:
        try:
            return self._environ[name]
        except KeyError:
            raise _AbsentError(f"the environment variable {name} is not set") from None

    def _content(self, name: str) -> str:
        try:
            return read_text(self._base_dir / name)
        except OSError as error:
            raise _AbsentError(f"the file {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the file {name} holds no UTF-8 text") from None
        except ValueError:
            raise ValueError("a file's name cannot hold a NUL character") from None
