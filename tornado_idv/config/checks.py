"""Checks that look at more than one setting, on the file as written.

They run beside the settings model, not after it, so that their problems are told
together with all others. What is malformed is the model's to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tornado_idv import yamltext
from tornado_idv.config.shapes import is_host, is_ip_address
from tornado_idv.errors import Problem
from tornado_idv.keys.token import digest, is_token68

_BOOLEAN = TypeAdapter(bool)


class _Entry(NamedTuple):
    path: str
    value: yamltext.Mapping

    def text(self, member: str) -> yamltext.Text | None:
        text = _at(self.value, member)
        return text if isinstance(text, yamltext.Text) else None


class _Value(NamedTuple):
    """A value that no two entries may share, in canonical form, and where it stands."""

    path: str
    mark: yamltext.Mark
    canonical: str


def cross_checks(tree: Any, file: str) -> Iterator[Problem]:
    """Every problem between settings."""
    keys = list(_entries(tree, "auth", "keys"))
    backends = _entries(tree, "backends")
    yield from _repeated(file, _texts(backends, "name"), "another backend has this name")
    yield from _repeated(file, _texts(keys, "id"), "another key has this id")
    yield from _repeated(file, _digests(keys), "another key has this token")
    yield from _without_one_token(file, keys)
    if not _may_hold_tokens(tree):
        yield from _plain_tokens(file, keys)


def _at(tree: Any, *steps: str) -> Any:
    for step in steps:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def _entries(tree: Any, *steps: str) -> Iterator[_Entry]:
    entries = _at(tree, *steps)
    for i, entry in enumerate(entries if isinstance(entries, yamltext.Items) else ()):
        if isinstance(entry, yamltext.Mapping):
            yield _Entry(f"{'.'.join(steps)}[{i}]", entry)


def _texts(entries: Iterable[_Entry], member: str) -> Iterator[_Value]:
    for entry in entries:
        if (text := entry.text(member)) is not None:
            yield _Value(f"{entry.path}.{member}", text.mark, text)


def _digests(keys: Iterable[_Entry]) -> Iterator[_Value]:
    for key in keys:
        for path, mark, token in _texts([key], "token"):
            if is_token68(token):
                yield _Value(path, mark, digest(token).hex())
        for path, mark, sha256 in _texts([key], "sha256"):
            yield _Value(path, mark, sha256.lower())


def _repeated(file: str, values: Iterable[_Value], what: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for path, mark, canonical in values:
        if canonical in first:
            yield Problem(file, *mark, path, f"{what}, see line {first[canonical]}")
        first.setdefault(canonical, mark.line)


def _without_one_token(file: str, keys: Iterable[_Entry]) -> Iterator[Problem]:
    for path, key in keys:
        # A blank forgotten after the colon makes one name of "token:idv_...": told elsewhere.
        written = [name for name in key if name.partition(":")[0] in ("sha256", "token")]
        if not written:
            yield Problem(file, *key.mark, path, "needs sha256, or token in a demo")
        elif len(written) > 1:
            yield Problem(file, *written[1].mark, path, "has sha256 and token; leave one out")


def _plain_tokens(file: str, keys: Iterable[_Entry]) -> Iterator[Problem]:
    for path, mark, _ in _texts(keys, "token"):
        message = (
            "a plain token is refused unless demo is true or server.host is loopback; write "
            "sha256 instead, as printed by: printf %s TOKEN | sha256sum"
        )
        yield Problem(file, *mark, path, message)


def _may_hold_tokens(tree: Any) -> bool:
    return _is_true(_at(tree, "demo")) or _is_loopback(_at(tree, "server", "host"))


def _is_true(value: Any) -> bool:
    """Whether ``demo`` is on; what is malformed is told as such, and not held against keys."""
    try:
        return value is not None and _BOOLEAN.validate_python(value)
    except ValidationError:
        return True


def _is_loopback(host: Any) -> bool:
    """Whether only this machine can connect; as `_is_true` with what is malformed."""
    if not isinstance(host, yamltext.Text) or not is_host(host):
        return True
    return ip_address(host).is_loopback if is_ip_address(host) else host.lower() == "localhost"
