"""Loads a configuration file, and reports all of its problems together."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.checks import cross_checks, is_demo, value_at
from tornado_idv.config.kinds import settings_type
from tornado_idv.config.problems import dotted, problems
from tornado_idv.config.references import Resolved
from tornado_idv.config.settings import IdentifierSettings, Settings
from tornado_idv.errors import ConfigError, MissingConfigError, Problem, SettingError, StartError
from tornado_idv.files import FileSignature, require_file
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.hookspecs import Kinds

_IN_FILE = attrgetter("line", "column")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a configuration file. It is read once, so settings and positions match.

    The option ``--port`` gives ``port``. It replaces ``server.port`` and ``server.listen``.
    ``signatures`` has the signature of this file from before it was read. `load` adds the TLS files
    and the files in ``${file:…}``, each with its signature from before it is read.
    """

    path: Path
    content: bytes
    port: int | None = None
    signatures: dict[Path, FileSignature | None] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, path: Path, port: int | None = None) -> "ConfigFile":
        """Read the file at ``path``; raises `StartError` if it cannot be read."""
        try:
            signature = FileSignature.of(path)
        except OSError as error:
            kind = MissingConfigError if isinstance(error, FileNotFoundError) else StartError
            raise kind(f"{path}: cannot be read: {error.strerror}") from error
        return cls(path, require_file(path), port, {path: signature})

    def load(self, kinds: Kinds, environ: Mapping[str, str]) -> Settings:
        """Parse and validate the content, and return the settings.

        ``kinds`` are the installed kinds of backend. ``environ`` has the variables for
        ``${env:NAME}``. Raises `ConfigError` with all problems, in their order in the file.
        """
        settings, absent, found = _validate(self, kinds, environ)
        if absent or found or settings is None:
            raise ConfigError(*sorted(absent + found, key=_IN_FILE))
        return settings

    @contextmanager
    def located(self) -> Iterator[None]:
        """If the ``with`` block raises `SettingError`, raise `ConfigError` with its position."""
        try:
            yield
        except SettingError as error:
            mark = yaml_loader.locate(self.tree(), error.steps)
            place = Problem(str(self.path), *mark, dotted(error.steps), str(error))
            raise ConfigError(place) from None

    def tree(self) -> Any:
        """Parse the YAML. Return each value as text with its position; raises `ConfigError`."""
        return yaml_loader.read(self.content, str(self.path))


def load_without_references(
    path: Path, kinds: Kinds, environ: Mapping[str, str]
) -> tuple[Settings | None, list[Problem]]:
    """Load a configuration file, even if its secrets are not on this machine.

    Returns the settings (``None`` if they need a missing secret) and the unresolved references.
    Raises `ConfigError` with all other problems, and `StartError` if the file cannot be read.
    """
    settings, absent, found = _validate(ConfigFile.read(path), kinds, environ)
    if found:
        raise ConfigError(*sorted(found, key=_IN_FILE))
    return settings, absent


def _validate(
    source: ConfigFile, kinds: Kinds, environ: Mapping[str, str]
) -> tuple[Settings | None, list[Problem], list[Problem]]:
    """Return the settings or ``None``, the unresolved references and all other problems."""
    resolved = Resolved(source.tree(), source.path, environ)
    source.signatures.update(resolved.files)
    tree, file = resolved.tree, str(source.path)
    found = list(cross_checks(tree, file))
    backends = value_at(tree, "backends")
    sections = [*backends] if isinstance(backends, list) else []
    sections.append(value_at(tree, "shared_cache"))
    model = settings_type(kinds, {str(value_at(each, "kind")) for each in sections})
    settings = None
    context = {
        "base_dir": resolved.base_dir,
        "profile_site": _first_site(tree),
        "nickname_case": value_at(tree, "identifiers", "nickname_case"),
        "identifiers": _identifiers(tree),
        "demo": is_demo(tree),
    }
    try:
        settings = model.model_validate(tree, context=context)
    except ValidationError as error:
        found += problems(error, model, tree, file)
    if settings is not None and (tls := settings.server.tls) is not None:
        certificate = (tls.cert_file, tls.key_file)
        source.signatures.update({each: FileSignature.find(each) for each in certificate})
    # The value of an unresolved reference is unknown, so no other problem of it is reported.
    unknown = {(each.line, each.column) for each in resolved.absent + resolved.invalid}
    known = [each for each in found if (each.line, each.column) not in unknown]
    return settings, resolved.absent, resolved.invalid + known


def _first_site(tree: Any) -> str:
    """Return the first profile site, for backends that query by profile URL.

    If the site is missing or invalid, return an empty text. The settings model reports the error.
    """
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        return ProfileSite.parse(tree["profile_sites"][0]).prefix
    return ""


def _identifiers(tree: Any) -> Identifiers | None:
    """Return the parser for canary options; ``None`` if the section ``identifiers`` is invalid."""
    with suppress(ValidationError):
        own = IdentifierSettings.model_validate(value_at(tree, "identifiers") or {})
        settings = Settings.model_construct(profile_sites=(), backends=(), identifiers=own)
        return settings.make_identifiers()
    return None
