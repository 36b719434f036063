"""Common parts of the commands for keys: options, key store, audit log and JSON records."""

import logging
import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, Field

from tornado_idv.cli.common import Record, RefusedError, config_option, exit_on_error, json_option
from tornado_idv.cli.standard_streams import print_message
from tornado_idv.errors import UncertainChangeError
from tornado_idv.features.keys.editor import KeyEditor, KeyRecord
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.interfaces.user_store import ignore_signals
from tornado_idv.keys.api_key import KEY_ID
from tornado_idv.keys.store import BUSY_TIMEOUT, KeyStoreLocation, locate_store
from tornado_idv.keys.token import digest
from tornado_idv.kit.config_parts import load_parts
from tornado_idv.logs.handlers import LogFormat, configure_logging
from tornado_idv.options import KeyStoreAddress, is_like_url
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.units import DURATION, format_rate, parse_duration, parse_rate

_audit = logging.getLogger("tornado_idv.audit")
_SERVER_TIMEOUT = 1.0
_MAX_TEXT = 200
"""Maximum length of an owner or a note, in characters."""
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class _Key(BaseModel):
    id: str = ""
    sha256: str = Field("", repr=False)
    token: str = Field("", repr=False)

    @property
    def digest(self) -> bytes:
        """The token's digest. An unresolved ``${…}`` gives a digest that no token has."""
        is_given = re.fullmatch("[0-9A-Fa-f]{64}", self.sha256)
        return bytes.fromhex(self.sha256) if is_given else digest(self.token)


class _Auth(BaseModel):
    store: KeyStoreAddress | None = None
    keys: tuple[_Key, ...] = ()


class _Logging(BaseModel):
    format: LogFormat = "auto"


class _Parts(BaseModel):
    auth: _Auth = _Auth()
    logging: _Logging = _Logging()


@dataclass(frozen=True, slots=True)
class Target:
    """The key store of a command, and the settings for it."""

    location: KeyStoreLocation
    as_json: bool
    now: float
    """The start of the command in Unix time. The command uses it as the current time."""
    log_format: LogFormat
    configured: frozenset[str | bytes]
    """The ids and digests of the keys in config.yaml, without digests of unreadable tokens."""

    def create(self) -> None:
        """Create an empty key store, unless the key store exists."""
        with closing(self.location):
            self.location.require_one_server(_SERVER_TIMEOUT)
            if self.location.create():
                print_message(f"Created the key store {self.location.name}.")

    @contextmanager
    def opened(self, *, read_only: bool = True) -> Iterator[KeyEditor]:
        with closing(self.location) as location:
            location.require_one_server(_SERVER_TIMEOUT)
            with location.connected(busy_timeout=BUSY_TIMEOUT, read_only=read_only) as database:
                yield KeyEditor(database, location.name)

    @contextmanager
    def changing(self, command: str, key_ids: Iterable[str]) -> Iterator[KeyEditor]:
        """Open the key store for one change. Commit the change on exit.

        From the commit until the end of the command, signals are ignored.
        """
        try:
            with self.opened(read_only=False) as store, store.transaction():
                yield store
                ignore_signals()
        except UncertainChangeError:
            self.audit(f"{command}: uncertain", key_ids)
            raise

    def audit(self, command: str, key_ids: Iterable[str]) -> None:
        """Unless stderr is a terminal, log the system user, the command and ids of changed keys.

        Tokens and their digests are never logged.
        """
        if sys.stderr.isatty():
            return
        try:  # from the system: the environment can be forged
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        with closing(configure_logging("info", self.log_format)) as logs:
            for i, key_id in enumerate(key_ids, start=1):
                extra = {"user": user, "command": f"keys {command}", "key": key_id}
                _audit.info("key changed", extra=extra)
                if i % 1000 == 0:  # the log drops lines if its buffer is full
                    logs.writer.flush()

    def check_new(self, key: KeyRecord) -> None:
        """Raise `RefusedError` if config.yaml has a key with this id or token."""
        if key.id in self.configured:
            raise RefusedError(f"config.yaml has a key {key.id} in auth.keys; use another id")
        if any(token.digest in self.configured for token in key.tokens):
            text = f"config.yaml has the token of {key.id} in auth.keys; remove one of them"
            raise RefusedError(text)


def on_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add --config, --store and --json to a command, and pass their values to it as a `Target`.

    `_parsers` parses the command's own parameters. After an error, its message is printed. The
    exit code is 3 for an `UncertainChangeError`, and 1 for any other error.
    """

    @wraps(command)
    def run(
        config_path: Path, store_path: Path | None, *, as_json: bool, **parameters: Any
    ) -> None:
        other_codes = {UncertainChangeError: Exit.UNDETERMINED}
        with exit_on_error(Exit.NO, as_json=as_json, other_codes=other_codes):
            target = _find_store(config_path, store_path, as_json=as_json)
            for name, parse in _parsers(target.now).items():
                try:
                    if parameters.get(name) is not None:
                        parameters[name] = parse(parameters[name])
                except ValueError as error:
                    raise RefusedError(f"--{name.replace('_', '-')}: {error}") from None
            command(target, **parameters)

    store_option = click.option(
        "--store",
        "store_path",
        type=click.Path(path_type=Path, readable=False),
        help="The file of the key store.  [default: auth.store]",
    )
    return store_option(config_option(json_option(run)))


def _find_store(config_path: Path, store_path: Path | None, *, as_json: bool) -> Target:
    """Return the key store named by ``--store`` or, without this option, by ``auth.store``.

    Raises `StartError` for a wrong configuration, and `RefusedError` if neither is set.
    """
    settings = _Parts()
    if store_path is None:
        settings = load_parts(config_path, _Parts, needed="auth.store")
    elif is_like_url(str(store_path)):
        text = "--store: must be a file; a URL may contain a password, so set it as auth.store"
        raise RefusedError(text)
    store, keys = store_path or settings.auth.store, settings.auth.keys
    if store is None:
        raise RefusedError(f"{config_path}: auth.store is not set; set it, or use --store PATH")
    needed = "sqlite" if isinstance(store, Path) else True  # another plugin may be broken
    return Target(
        locate_store(store, installed_kinds(plugin_manager(entry_points=needed))),
        as_json,
        time.time(),
        settings.logging.format,
        frozenset(each for key in keys for each in (key.id, key.digest)),
    )


create_option = click.option(
    "--create", "may_create", is_flag=True, help="Create the key store if it does not exist."
)


def _parse_id(key_id: str) -> str:
    """Return a valid id. Raises `RefusedError` without an invalid id, because it may be a token."""
    if not KEY_ID.fullmatch(key_id):
        raise RefusedError("not the id of a key: 1 to 64 letters, digits, . and - are needed")
    return key_id


def check_text(text: str) -> str:
    """Return an owner or note unchanged. Raises `ValueError` unless it is short and printable."""
    if len(text) > _MAX_TEXT or not text.isprintable():
        raise ValueError(f"must be at most {_MAX_TEXT} printable characters")
    return text


def check_moment(moment: float) -> float:
    """Return a Unix time unchanged. Raises `ValueError` before 1970, and from the year 9999 on."""
    if not 0 <= moment < _END_OF_TIME:
        raise ValueError("must be a time from 1970 on and before the year 9999")
    return moment


def _parse_moment(text: str, now: float) -> float:
    """Parse a duration from ``now`` (``90d``), a date, or a time (``2027-01-01T00:00:00Z``).

    Return a Unix time. A date stands for its first second in UTC. Raises `ValueError`.
    """
    if DURATION.fullmatch(text):
        return check_moment(now + parse_duration(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "neither a duration nor a date; write it like 90d, 2027-01-01 or 2027-01-01T00:00:00Z"
        ) from None
    if moment.tzinfo is None:
        if len(text) > len("2027-01-01"):
            raise ValueError("the time zone is missing; add Z for UTC")
        moment = moment.replace(tzinfo=UTC)
    return check_moment(moment.timestamp())


def _parse_overlap(text: str, now: float) -> float:
    seconds = parse_duration(text)
    check_moment(now + seconds)
    return seconds


def _parsers(now: float) -> Mapping[str, Callable[[str], object]]:
    """Return parsers by name of parameter. A parser raises `ValueError` or `RefusedError`."""
    return {
        "key_id": _parse_id,
        "not_before": partial(_parse_moment, now=now),
        "owner": check_text,
        "overlap": partial(_parse_overlap, now=now),
        "expires": partial(_parse_moment, now=now),
        "requests": parse_rate,
        "misses": parse_rate,
        "note": check_text,
        "unused": parse_duration,
        "expiring": parse_duration,
    }


def format_moment(moment: float | None, *, exact: bool = False) -> str | None:
    """Format a Unix time in UTC. The result is limited to the time from 1970 to the start of 9999.

    ``exact`` adds microseconds.
    """
    if moment is None:
        return None
    moment = min(max(0, moment), _END_OF_TIME)  # in this order, NaN becomes 0
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%S{'.%f' if exact else ''}Z}"


def as_record(key: KeyRecord, now: float, *, exact: bool = False) -> Record:
    """Return the public data of a key as a JSON record, with ``exact`` times in microseconds."""
    moment = partial(format_moment, exact=exact)
    return {
        "id": key.id,
        "state": key.state(now),
        "owner": key.owner,
        "scopes": list(key.scopes),
        "not_before": moment(key.not_before),
        "expires": moment(key.expires),
        "requests": key.requests and format_rate(key.requests),
        "misses": key.misses and format_rate(key.misses),
        "note": key.note,
        "disabled": key.disabled,
        "revoked": moment(key.revoked),
        "created": moment(key.created),
        "last_used": moment(key.last_used),
        "tokens": [
            {"created": moment(each.created), "expires": moment(each.expires)}
            for each in key.tokens
        ],
    }
