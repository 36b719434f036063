"""Common parts of the commands for keys: the store, the audit log, points in time, the output."""

from __future__ import annotations

import logging
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TypeVar

import click

from tornado_idv.cli.common import Record, config_option, exit_on_error, json_option
from tornado_idv.cli.standard_streams import print_message
from tornado_idv.config.parts import KeyStoreSettings, load_part
from tornado_idv.errors import IdvError, UncertainChangeError
from tornado_idv.interfaces.commands import Exit, ignore_signals
from tornado_idv.keys.api_key import KEY_ID
from tornado_idv.keys.location import KeyStoreExistsError, KeyStoreLocation
from tornado_idv.keys.record import KeyRecord
from tornado_idv.keys.store import KeyStore
from tornado_idv.keys.store_file import KeyStoreFile, locate_store
from tornado_idv.logs.handlers import LogFormat, configure_logging
from tornado_idv.options import is_like_url
from tornado_idv.registry import key_stores, plugin_manager
from tornado_idv.units import DURATION, format_rate, parse_duration

_T = TypeVar("_T")
_audit = logging.getLogger("tornado_idv.audit")
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_LINES_AT_ONCE = 1000
"""Audit lines after which the log is flushed, since its buffer is bounded."""


class KeyCommandError(IdvError):
    """A command for keys cannot do what it was asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The key store that a command works on, and what it needs to know beside it."""

    location: KeyStoreLocation
    as_json: bool
    log_format: LogFormat = "auto"
    configured: frozenset[str] = frozenset()
    """The ids of the keys in config.yaml."""
    configured_digests: frozenset[bytes] = frozenset()
    """The digests of their tokens, as far as this user can read them."""

    def create(self) -> None:
        """Create an empty key store unless there is one."""
        with suppress(KeyStoreExistsError):
            with self.location.creating() as database:
                pass
            if database is not None:
                print_message(f"Created the key store {self.location.name}.")

    @contextmanager
    def opened(self) -> Iterator[KeyStore]:
        """Open the key store."""
        with closing(self.location), self.location.opened() as store:
            yield store

    @contextmanager
    def changing(
        self, command: str, key_ids: Iterable[str], *, may_create: bool = False
    ) -> Iterator[KeyStore]:
        """Open the key store for one change, committed at the end with a store that is created.

        From the commit on, signals are ignored up to the end of the command.
        """
        try:
            with closing(self.location):
                if may_create:
                    with self.location.creating() as database:
                        if database is not None:
                            yield KeyStore(database, self.location.name)
                            ignore_signals()
                    if database is not None:
                        print_message(f"Created the key store {self.location.name}.")
                        return
                with self.location.opened() as store, store.transaction():
                    yield store
                    ignore_signals()
        except UncertainChangeError:
            self.audit(f"{command}: uncertain", key_ids)
            raise

    def audit(self, command: str, key_ids: Iterable[str]) -> None:
        """Log who changed which keys; never a token or its digest."""
        try:  # from the system and not the environment
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        with closing(configure_logging("info", self.log_format)) as logs:
            for i, key_id in enumerate(key_ids, start=1):
                extra = {"user": user, "command": f"keys {command}", "key": key_id}
                _audit.info("key changed", extra=extra)
                if i % _LINES_AT_ONCE == 0:
                    logs.writer.flush()

    def check_new(self, key: KeyRecord) -> None:
        """Raise `KeyCommandError` for the id or the token of a key in config.yaml."""
        if key.id in self.configured:
            raise KeyCommandError(f"config.yaml has a key {key.id} in auth.keys; use another id")
        if any(token.digest in self.configured_digests for token in key.tokens):
            text = f"config.yaml has the token of {key.id} in auth.keys; remove one of them"
            raise KeyCommandError(text)


def on_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all commands for keys; ``command`` gets a `Target`.

    Its errors are printed, and exit with 1; `UncertainChangeError` with 3.
    """

    @wraps(command)
    def run(
        config_path: Path,
        store_path: Path | None,
        as_json: bool,  # noqa: FBT001 click's way
        **parameters: object,
    ) -> None:
        other_codes = {UncertainChangeError: Exit.UNDETERMINED}
        with exit_on_error(Exit.NO, as_json=as_json, other_codes=other_codes):
            command(find_store(config_path, store_path, as_json=as_json), **parameters)

    store_option = click.option(
        "--store",
        "store_path",
        type=click.Path(path_type=Path),
        help="The file of the key store.  [default: auth.store of the configuration]",
    )
    with_options: Callable[..., None] = store_option(config_option(json_option(run)))
    return with_options


def find_store(config_path: Path, store_path: Path | None, *, as_json: bool) -> Target:
    """Return ``--store``, or else ``auth.store`` of the configuration.

    Raises `StartError` for a wrong configuration, and `KeyCommandError` for one without a store.
    """
    if store_path is not None:
        if is_like_url(str(store_path)):
            raise KeyCommandError(
                "--store: must be a file; set a URL, which may hold a password, as auth.store"
            )
        return Target(KeyStoreFile(store_path), as_json)
    settings = load_part(KeyStoreSettings, config_path, os.environ)
    store, keys = settings.auth.store, settings.auth.keys
    if store is None:
        raise KeyCommandError(f"{config_path}: auth.store is not set; set it, or use --store PATH")
    return Target(
        locate_store(store, {} if isinstance(store, Path) else key_stores(plugin_manager())),
        as_json,
        settings.logging.format,
        frozenset(key.id for key in keys),
        frozenset(filter(None, (key.digest for key in keys))),
    )


create_option = click.option(
    "--create", "may_create", is_flag=True, help="Create the key store if there is none."
)


def parse_moment(text: str | None, now: float, option: str) -> float | None:
    """Return the Unix time of ``90d`` from now, ``2027-01-01`` or ``2027-01-01T00:00:00Z``.

    A date is its first second in UTC. Raises `KeyCommandError`, naming the option.
    """
    if text is None:
        return None
    is_period = DURATION.fullmatch(text) is not None
    moment = now + parse_duration(text) if is_period else _parse_date(text, option)
    return check_moment(moment, option)


def check_moment(moment: float, option: str) -> float:
    """Return a Unix time; raises `KeyCommandError`, naming the option, for one we cannot print."""
    if not 0 <= moment < END_OF_TIME:
        raise KeyCommandError(f"{option}: must be a time from 1970 on and before the year 9999")
    return moment


def check_id(key_id: str) -> str:
    """Return the id of a key; raises `KeyCommandError`, which does not repeat other text."""
    if not re.fullmatch(KEY_ID, key_id, re.ASCII):
        raise KeyCommandError("not the id of a key: 1 to 64 letters, digits, . and - are needed")
    return key_id


def parse_text(parse: Callable[[str], _T], text: str, option: str) -> _T:
    """Return what ``parse`` does; raises `KeyCommandError`, naming the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise KeyCommandError(f"{option}: {error}") from None


def _parse_date(text: str, option: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise KeyCommandError(
            f"{option}: neither a duration nor a date; write it like 90d, 2027-01-01 or "
            "2027-01-01T00:00:00Z"
        ) from None
    if moment.tzinfo is None:
        if len(text) > len("2027-01-01"):
            raise KeyCommandError(f"{option}: the time zone is missing; add Z for UTC")
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def format_moment(moment: float | None) -> str | None:
    """Return a time in UTC, to the second; never fails, since any time may be in a store."""
    if moment is None:
        return None
    try:
        return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "after 9999" if moment > 0 else "before 1"


def as_record(key: KeyRecord, now: float) -> Record:
    """Return what may be shown of a key, for scripts."""
    return {
        "id": key.id,
        "state": key.state(now),
        "owner": key.owner,
        "scopes": list(key.scopes),
        "not_before": format_moment(key.not_before),
        "expires": format_moment(key.expires),
        "requests": key.requests and format_rate(key.requests),
        "misses": key.misses and format_rate(key.misses),
        "note": key.note,
        "disabled": key.disabled,
        "revoked": format_moment(key.revoked),
        "created": format_moment(key.created),
        "last_used": format_moment(key.last_used),
        "tokens": [
            {"created": format_moment(each.created), "expires": format_moment(each.expires)}
            for each in key.tokens
        ],
    }
