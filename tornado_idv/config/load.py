"""Reads a configuration file and tells everything that is wrong with it at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tornado_idv import yamltext
from tornado_idv.backend import AnyBackend
from tornado_idv.config.checks import cross_checks
from tornado_idv.config.kinds import settings_type
from tornado_idv.config.problems import problems
from tornado_idv.config.references import resolve, resolved_values
from tornado_idv.config.schema import schema_of
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.files import read_file
from tornado_idv.identifiers import ProfileSite


def load(path: Path, kinds: Mapping[str, type[AnyBackend]], environ: Mapping[str, str]) -> Settings:
    """The settings in the file at ``path``.

    ``kinds`` are the installed kinds of backend, ``environ`` is what ``${env:NAME}``
    refers to. Raises `ConfigError` with every problem in the order of the file, and
    `StartError` if the file cannot be read.
    """
    settings, absent, problems = _examine(path, kinds, environ)
    if absent or problems or settings is None:
        raise ConfigError(*_in_order(absent + problems))
    return settings


def load_without_references(
    path: Path, kinds: Mapping[str, type[AnyBackend]], environ: Mapping[str, str]
) -> tuple[Settings | None, list[Problem]]:
    """As `load`, where secrets may be absent: their references are no problem.

    Returns the settings, ``None`` if there are none without these references, and what is
    absent. Raises `ConfigError` with every other problem, and `StartError`.
    """
    settings, absent, problems = _examine(path, kinds, environ)
    if problems:
        raise ConfigError(*_in_order(problems))
    return settings, absent


def _examine(
    path: Path, kinds: Mapping[str, type[AnyBackend]], environ: Mapping[str, str]
) -> tuple[Settings | None, list[Problem], list[Problem]]:
    """The settings, if there are any; the references that are absent; all other problems."""
    file, base_dir = str(path), path.absolute().parent
    tree, absent, wrong = resolve(yamltext.read(_content(path), file), file, base_dir, environ)
    found = list(cross_checks(tree, file))
    settings = None
    model = settings_type(kinds)
    context = {
        "base_dir": base_dir,
        "profile_site": _first_site(tree),
        "nickname_case": _nickname_case(tree),
    }
    try:
        settings = model.model_validate(tree, context=context)
    except ValidationError as error:
        found += problems(error, schema_of(model), tree, file)
    unknown = {(problem.line, problem.column) for problem in absent + wrong}
    known = [each for each in found if (each.line, each.column) not in unknown]
    return settings, absent, wrong + known


def reference_values(path: Path, environ: Mapping[str, str]) -> frozenset[str]:
    """Return what ``${env:NAME}`` and ``${file:path}`` in the file at ``path`` stand for.

    Raises `StartError` and `ConfigError` as `load` does for a file that cannot be read.
    """
    written = yamltext.read(_content(path), str(path))
    return resolved_values(written, str(path), path.absolute().parent, environ)


def locate(path: Path, *steps: int | str) -> yamltext.Mark:
    """Where in the file at ``path`` a value stands, or else the nearest thing around it.

    Raises `StartError` as `load` does.
    """
    return yamltext.locate(yamltext.read(_content(path), str(path)), steps)


def _first_site(tree: Any) -> str:
    """The profile site that answers use, for backends that ask by profile URL.

    Empty where there is none that is any good, which is told elsewhere.
    """
    try:
        return ProfileSite.parse(tree["profile_sites"][0]).prefix
    except (AttributeError, LookupError, TypeError, ValueError):
        return ""


def _nickname_case(tree: Any) -> Any:
    """How nicknames are compared, for backends; a wrong value is reported by the settings."""
    try:
        return tree["identifiers"]["nickname_case"]
    except (LookupError, TypeError):
        return None


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise StartError(f"{path}: cannot be read: {error.strerror}") from error


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line, problem.column))
