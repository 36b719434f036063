"""``tornado-idv keys import``: keys that another system issued, by their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Annotated

import click
from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tornado_idv import strict_json
from tornado_idv.cli.common import RefusedError, counted, report, with_progress
from tornado_idv.cli.keys.store import Target, check_moment, create_option, on_store
from tornado_idv.config.problems import dotted, is_safe_to_print
from tornado_idv.config.types import KeyId, Moment, RateLimit, Sha256, check_order
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.keys.record import KeyRecord, Token, check_text
from tornado_idv.keys.store import DuplicateKeyError
from tornado_idv.options import Options

_MESSAGES = {
    "extra_forbidden": "is no member of a key",
    "missing": "is missing",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
}

ShortText = Annotated[str, AfterValidator(check_text)]


class ImportedKey(Options):
    """A line of the file."""

    id: KeyId
    sha256: Sha256 = Field(repr=False)
    owner: ShortText = ""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = DEFAULT_SCOPES
    not_before: Moment | None = None
    expires: Moment | None = None
    requests: RateLimit | None = None
    misses: RateLimit | None = None
    note: ShortText = ""
    disabled: StrictBool = False

    @field_validator("not_before", "expires")
    @classmethod
    def _in_order(cls, moment: datetime | None, info: ValidationInfo) -> datetime | None:
        if moment is not None:
            check_moment(moment.timestamp())
        return check_order(info.data.get("not_before"), moment)

    def as_record(self, now: float) -> KeyRecord:
        attributes = dict(self)
        for name in ("not_before", "expires"):
            attributes[name] = attributes[name] and attributes[name].timestamp()
        token = Token(bytes.fromhex(attributes.pop("sha256")), now)
        return KeyRecord(attributes.pop("id"), now, (token,), **attributes)


@click.command("import")
@click.argument("file", type=click.File("rb"))
@create_option
@on_store
def import_keys(target: Target, *, file: IO[bytes], may_create: bool) -> None:
    """Add keys that another system issued, all or none.

    FILE may be - for standard input. Each line is a JSON object with the members id and sha256
    (the SHA-256 of the token), and any of owner, scopes, not_before, expires, requests, misses,
    note and disabled.
    """
    name = getattr(file, "name", "<stdin>")
    keys, lines = _read_keys(target, file.readlines(), name)
    if not keys:
        raise RefusedError(f"{name}: there is no key in it")
    ids = [key.id for key in keys]
    with target.changing("import", ids, may_create=may_create) as store:
        try:
            store.add(with_progress(keys, "Adding"))
        except DuplicateKeyError as error:
            line = lines[error.key_id]
            raise ConfigError(Problem(name, line, 1, "", str(error))) from None
    target.audit("import", ids)
    record = {"ok": True, "imported": len(keys)}
    report(f"Imported {counted(len(keys), 'key')}.", record, as_json=target.as_json)


def _read_keys(
    target: Target, lines: Sequence[bytes], name: str
) -> tuple[list[KeyRecord], Mapping[str | bytes, int]]:
    """Return the keys, and the line of each id; raises `ConfigError` with all problems."""
    keys: list[KeyRecord] = []
    problems: list[Problem] = []
    first: dict[str | bytes, int] = {}
    for number, line in enumerate(with_progress(lines, "Reading"), start=1):
        if not line.strip():
            continue
        try:
            key = ImportedKey.model_validate(strict_json.loads(line)).as_record(target.now)
            target.check_new(key)
        except ValidationError as error:
            problems += (Problem(name, number, 1, *each) for each in _messages(error))
        except RefusedError as error:
            problems.append(Problem(name, number, 1, "id", str(error)))
        except ValueError:
            problems.append(Problem(name, number, 1, "", "not a line of JSON"))
        else:
            keys.append(key)
            for member, value in (("id", key.id), ("sha256", key.tokens[0].digest)):
                if first.setdefault(value, number) != number:
                    text = f"the same as in line {first[value]}"
                    problems.append(Problem(name, number, 1, member, text))
    if problems:
        raise ConfigError(*problems)
    return keys, first


def _messages(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield member and message of each error; neither repeats a value."""
    details = error.errors(include_url=False, include_input=False)
    # pydantic reports a list in which every item is wrong as too short as well.
    lists = {detail["loc"][:1] for detail in details if len(detail["loc"]) > 1}
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if kind == "too_short" and steps in lists:
            continue
        member = dotted(steps) if all(map(is_safe_to_print, steps)) else ""
        message = _MESSAGES.get(kind) or str(detail.get("ctx", {}).get("error", detail["msg"]))
        yield member, message
