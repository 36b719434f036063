"""The commands ``keys export`` and ``keys import``: keys as lines of JSON, with token digests."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from math import inf
from pathlib import Path
from typing import IO, Annotated

import click
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator

from tornado_idv import strict_json
from tornado_idv.cli.common import Record, RefusedError, counted, examples, report
from tornado_idv.config.problems import dotted, is_safe_to_print
from tornado_idv.config.types import AFTER_NOT_BEFORE, KeyId, Moment, Sha256
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.features.keys.editor import TIMES, DuplicateKeyError, KeyRecord, Token, in_order
from tornado_idv.features.keys.store import (
    Target,
    as_record,
    check_moment,
    check_text,
    create_option,
    format_moment,
    on_store,
)
from tornado_idv.keys.api_key import DEFAULT_SCOPES, Scope
from tornado_idv.kit.files import replaced_file
from tornado_idv.options import Options, RateLimit, checked_by

_MESSAGES = {
    "extra_forbidden": "is not a member of a key",
    "missing": "is missing",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
}

ShortText = Annotated[str, AfterValidator(check_text)]
Time = Annotated[Moment, checked_by(lambda moment: check_moment(moment.timestamp()))]


class ImportedToken(Options):
    sha256: Sha256 = Field(repr=False)
    created: Time | None = None
    expires: Time | None = None


class ImportedKey(Options):
    """A key in a line of the imported file."""

    id: KeyId
    tokens: Annotated[tuple[ImportedToken, ...], Field(min_length=1)] | None = None
    sha256: Sha256 | None = Field(None, repr=False, validate_default=True)
    owner: ShortText = ""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = DEFAULT_SCOPES
    created: Time | None = None
    not_before: Time | None = None
    expires: Annotated[Time | None, AFTER_NOT_BEFORE] = None
    requests: RateLimit | None = None
    misses: RateLimit | None = None
    note: ShortText = ""
    disabled: Annotated[bool, Field(strict=True)] = False
    revoked: Time | None = None
    last_used: Time | None = None

    @field_validator("sha256")
    @classmethod
    def _is_alone(cls, sha256: str | None, info: ValidationInfo) -> str | None:
        tokens = info.data.get("tokens", ())  # missing if the tokens are invalid
        if sha256 is None and tokens is None:
            raise ValueError("is required unless there are tokens")
        if sha256 is not None and tokens:
            raise ValueError("cannot be combined with tokens")
        return sha256

    def as_record(self, now: float, stored: KeyRecord | None = None) -> KeyRecord:
        """Return the key. ``created`` is by default ``stored.created`` or, without it, ``now``."""
        attributes = dict(self) | {name: _seconds(getattr(self, name)) for name in TIMES}
        sha256, tokens = attributes.pop("sha256"), attributes.pop("tokens")
        created = _seconds(attributes.pop("created")) or (stored.created if stored else now)
        known = {each.digest: each.created for each in stored.tokens} if stored else {}
        attributes["tokens"] = in_order(
            Token(
                digest := bytes.fromhex(each.sha256),
                _seconds(each.created) or known.get(digest, now if stored else created),
                _seconds(each.expires),
            )
            for each in tokens or (ImportedToken(sha256=sha256),)
        )
        return KeyRecord(created=created, **attributes)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _line(key: KeyRecord) -> Record:
    """Return the exported data of a key except ``last_used``. Imports compare these records."""
    record = as_record(key, 0.0, exact=True)
    tokens = zip(key.tokens, record["tokens"], strict=True)
    record["tokens"] = [{"sha256": each.digest.hex(), **times} for each, times in tokens]
    del record["state"], record["last_used"]
    return record


@click.command("export", epilog=examples("keys export keys.jsonl"))
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@on_store
def export_keys(target: Target, *, file: str) -> None:
    """Write all keys to FILE, by default to standard output, for `keys import`.

    Each key is a line of JSON with all its data in the store. Tokens are written as digests. After
    an error, FILE is unchanged.
    """
    with target.opened() as store:
        keys = list(store.records())
    with nullcontext() if file == "-" else replaced_file(Path(file)) as out:
        for key in keys:
            last_used = format_moment(key.last_used, exact=True)
            click.echo(json.dumps({**_line(key), "last_used": last_used}), file=out)
    record = {"ok": True, "exported": len(keys)}
    report(f"Exported {counted(len(keys), 'key')}.", record, as_json=target.as_json and file != "-")


@click.command(
    "import",
    epilog=examples("keys import keys.jsonl", "keys import keys.jsonl --update --config new.yaml"),
)
@click.argument("file", type=click.File("rb"))
@click.option("--update", is_flag=True, help="Replace a stored key if FILE has a key with its id.")
@create_option
@on_store
def import_keys(target: Target, *, file: IO[bytes], update: bool, may_create: bool) -> None:
    """Add keys from `keys export` or another system, all or none.

    FILE may be - for standard input. Each line is a JSON object. It has the member id, and either
    sha256 (the SHA-256 of the token) or tokens. Optional members are owner, scopes, created,
    not_before, expires, requests, misses, note, disabled, revoked and last_used.

    --update removes no key. If a key was revoked, disabled or rotated in this store but not in
    FILE, the command fails.
    """
    name = getattr(file, "name", "<stdin>")
    lines, line_of = _read_lines(target, file.readlines(), name)
    if not lines:
        raise RefusedError(f"{name}: there is no key in it")
    if may_create:
        target.create()
    with target.changing("import", [each.id for each in lines]) as store:
        known = store.by_id() if update else {}
        keys = [each.as_record(target.now, known.get(each.id)) for each in lines]
        undone = {key.id: _undone(known[key.id], key) for key in keys if key.id in known}
        problems = [
            Problem(name, line_of[each], 1, "id", text) for each, text in undone.items() if text
        ]
        if problems:
            raise ConfigError(*problems)
        changed = [key for key in keys if key.id not in known or _line(key) != _line(known[key.id])]
        try:
            replaced = [key.id for key in changed if key.id in known]
            hidden = not sys.stderr.isatty()
            with click.progressbar(changed, None, "Adding", hidden, file=sys.stderr) as bar:
                store.add(bar, replaced=replaced)
        except DuplicateKeyError as error:
            raise ConfigError(Problem(name, line_of[error.key_id], 1, "", str(error))) from None
        store.write_last_used({key.id: key.last_used for key in keys if key.last_used})
    target.audit("import", [key.id for key in changed])
    new, equal = len(changed) - len(replaced), len(keys) - len(changed)
    record = {"ok": True, "imported": new, "updated": len(replaced), "unchanged": equal}
    text = f"Imported {counted(new, 'key')}"
    if update:
        text += f", updated {len(replaced)}; {equal} were equal"
    report(f"{text}.", record, as_json=target.as_json)


def _undone(stored: KeyRecord, key: KeyRecord) -> str | None:
    """Return the reason why ``key`` must not replace ``stored``, or ``None``."""
    known, ends = ({each.digest: each.end for each in one.tokens} for one in (stored, key))
    first = next((each for each in key.tokens if each.digest not in known), key.tokens[-1]).created
    lost = [each for each in stored.tokens if each.digest not in ends]
    longer = [each.end for each in stored.tokens if each.end + 1 < ends.get(each.digest, 0)]
    if stored.revoked is not None and key.revoked is None:
        return "the key was revoked permanently in this store"
    if stored.disabled and not key.disabled and key.revoked is None:
        return "the key is disabled in this store; enable it first"
    # A rotation in both stores, or by a slow clock, leaves an end that the file would undo. If a
    # token is new here, but older than a lost one, a rotation may have removed it after its end.
    if any(each.created > first or each.end > min(longer, default=inf) for each in lost):
        return "the key was rotated in this store"
    is_as_old = format_moment(stored.created, exact=True) == format_moment(key.created, exact=True)
    if not is_as_old and len(lost) == len(stored.tokens):
        return "another key has this id in this store"
    return None


def _read_lines(
    target: Target, lines: Sequence[bytes], name: str
) -> tuple[list[ImportedKey], Mapping[str | bytes, int]]:
    """Return the keys, and the line number of each id and digest. Raises `ConfigError`."""
    keys: list[ImportedKey] = []
    problems: list[Problem] = []
    first: dict[str | bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            key = ImportedKey.model_validate(strict_json.loads(line))
            record = key.as_record(target.now)
            target.check_new(record)
        except ValidationError as error:
            problems += (Problem(name, number, 1, *each) for each in _messages(error))
        except RefusedError as error:
            problems.append(Problem(name, number, 1, "id", str(error)))
        except ValueError:
            problems.append(Problem(name, number, 1, "", "not a line of JSON"))
        else:
            keys.append(key)
            named: list[tuple[str, str | bytes]] = [("id", key.id)]
            named += [("sha256", each.digest) for each in record.tokens]
            for member, value in named:
                if first.setdefault(value, number) != number:
                    text = f"the same as in line {first[value]}"
                    problems.append(Problem(name, number, 1, member, text))
    if problems:
        raise ConfigError(*problems)
    return keys, first


def _messages(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the member and the message of each error. Messages contain no values."""
    details = error.errors(include_url=False, include_input=False)
    # If every item of a list is wrong, pydantic also reports the list as too short.
    lists = {detail["loc"][:1] for detail in details if len(detail["loc"]) > 1}
    for detail in details:
        kind, steps = detail["type"], detail["loc"]
        if kind == "too_short" and steps in lists:
            continue
        member = dotted(steps) if all(map(is_safe_to_print, steps)) else ""
        message = _MESSAGES.get(kind) or str(detail.get("ctx", {}).get("error", detail["msg"]))
        yield member, message
