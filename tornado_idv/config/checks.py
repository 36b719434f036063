"""Checks of several settings together, on the parsed configuration file.

The checks and the settings model run independently, so one report has the problems of both. The
checks ignore malformed values, because the model reports these.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tornado_idv import yaml_loader
from tornado_idv.config.address import Address
from tornado_idv.config.types import is_host, is_loopback
from tornado_idv.errors import Problem, SettingError
from tornado_idv.features import MISSING
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.token import digest, is_token68

_Entry = tuple[str, yaml_loader.Mapping]
_Value = tuple[str, yaml_loader.Mark, str]
"""The path, position and value of a setting. `_digests` replaces a token by its SHA-256."""


def cross_checks(tree: Any, file: str) -> Iterator[Problem]:
    """Yield a problem for each wrong combination of settings."""
    keys = list(_entries(tree, "auth", "keys"))
    backends = list(_entries(tree, "backends"))
    yield from _duplicates(file, _texts(backends, "name"), "another backend has this name")
    shadows = [
        (f"{path}.shadow", shadow)
        for path, each in backends
        if isinstance(shadow := value_at(each, "shadow"), yaml_loader.Mapping)
    ]
    yield from _duplicates(file, _texts(shadows, "state"), "another shadow writes to this file")
    needed = [("shared_cache", "shared_cache", value_at(tree, "shared_cache"))]
    needed += [("backends.shadow", path, shadow) for path, shadow in shadows]
    for setting, path, value in needed:
        if setting in MISSING and value is not None:
            mark: yaml_loader.Mark = value.mark
            yield Problem(file, *mark, path, MISSING[setting])
    yield from _duplicates(file, _texts(keys, "id"), "another key has this id")
    yield from _duplicates(file, _digests(keys), "another key has this token")
    for path, key in keys:
        # Without a space after the colon, "token:idv_..." is one name: the model reports it.
        names = [name for name in key if name.partition(":")[0] in ("sha256", "token")]
        if not names:
            yield Problem(file, *key.mark, path, "needs sha256; a demo or loopback allows token")
        elif len(names) > 1:
            yield Problem(file, *names[1].mark, path, "has sha256 and token; leave one out")
    yield from _listener_checks(tree, file, keys)
    workers = value_at(tree, "server", "workers")
    if is_demo(tree) and isinstance(workers, yaml_loader.Text) and workers != "1":
        text = "demo: true needs workers: 1, because the test double keeps its state in one process"
        yield Problem(file, *workers.mark, "server.workers", text)


def _listener_checks(tree: Any, file: str, keys: Iterable[_Entry]) -> Iterator[Problem]:
    host, listen = (value_at(tree, "server", name) for name in ("host", "listen"))
    if listen is not None:
        section = [("server", value_at(tree, "server"))]
        for path, mark, _ in (*_texts(section, "host"), *_texts(section, "port")):
            yield Problem(file, *mark, path, "server.listen replaces this setting; remove it")
    # The model reports a malformed host or address.
    is_exposed = isinstance(host, yaml_loader.Text) and is_host(host) and not is_loopback(host)
    addresses = [
        (f"server.listen[{i}]", each.mark, each)
        for i, each in enumerate(listen if isinstance(listen, yaml_loader.Items) else ())
        if isinstance(each, yaml_loader.Text)
    ]
    for *_, text in addresses:
        with suppress(ValueError):
            is_exposed = is_exposed or not Address.parse(text).is_local
    own = (each for each in addresses if not each[2].endswith(":0"))  # port 0 is any free port
    yield from _duplicates(file, own, "this address is listed twice")
    if is_exposed and not is_demo(tree):
        for path, mark, _ in _texts(keys, "token"):
            message = (
                "a plain token is only allowed with demo: true or when listening on loopback; "
                "write sha256 instead, as printed by: printf %s TOKEN | sha256sum"
            )
            yield Problem(file, *mark, path, message)


def value_at(tree: Any, *steps: str) -> Any:
    """Return the value at a path, ``None`` if it is missing."""
    for step in steps:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def _entries(tree: Any, *steps: str) -> Iterator[_Entry]:
    entries = value_at(tree, *steps)
    for i, entry in enumerate(entries if isinstance(entries, yaml_loader.Items) else ()):
        if isinstance(entry, yaml_loader.Mapping):
            yield f"{'.'.join(steps)}[{i}]", entry


def _texts(entries: Iterable[_Entry], member: str) -> Iterator[_Value]:
    for path, entry in entries:
        text = value_at(entry, member)
        if isinstance(text, yaml_loader.Text):
            yield f"{path}.{member}", text.mark, text


def _digests(keys: Iterable[_Entry]) -> Iterator[_Value]:
    for key in keys:
        for path, mark, token in _texts([key], "token"):
            if is_token68(token):
                yield path, mark, digest(token).hex()
        for path, mark, sha256 in _texts([key], "sha256"):
            yield path, mark, sha256.lower()


def _duplicates(file: str, values: Iterable[_Value], message: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for path, mark, canonical in values:
        if canonical in first:
            yield Problem(file, *mark, path, f"{message}, see line {first[canonical]}")
        first.setdefault(canonical, mark.line)


def is_demo(tree: Any) -> bool:
    """Return whether ``demo`` is true or malformed.

    If a malformed ``demo`` counted as false, each plain token would be a further error.
    """
    value = value_at(tree, "demo")
    with suppress(ValidationError):
        return value is not None and TypeAdapter(bool).validate_python(value)
    return True


def key_conflicts(
    configured: Sequence[ApiKey], stored: Iterable[ApiKey], name: str
) -> Iterator[SettingError]:
    """Yield an error for each configured key with an id or token that is also in a key store."""
    by_digest = {key.digest: key.id for key in stored}
    ids = set(by_digest.values())
    for i, key in enumerate(configured):
        if key.id in ids:
            text = f"the key store {name} has a key {key.id}, too; remove this one"
            yield SettingError(text, "auth", "keys", i, "id")
        elif key.digest in by_digest:
            text = (
                f"the key {by_digest[key.digest]} in the key store {name} has the token of "
                f"{key.id}; remove the key from auth.keys"
            )
            yield SettingError(text, "auth", "keys", i)
