"""TLS towards an upstream: whom we believe, and who we are.

Files that change are read again, for the connections made from then on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationInfo, field_validator

from tornado_idv import ConfigPath, Options, StartError

_log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0


class TlsOptions(Options):
    """Whose certificates are believed, and which one is ours."""

    ca_file: ConfigPath | None = None
    """Certificates of those who may vouch for the other service, in PEM form, instead of those
    that the system trusts."""
    cert_file: ConfigPath | None = None
    """Our own certificate and its chain, in PEM form, for a service that asks for one."""
    key_file: ConfigPath | None = None
    """The key of ``cert_file``, not encrypted; absent if ``cert_file`` holds it too."""
    verify: bool = True
    """Whether the other service must prove who it is; false is for trials alone: anybody on the
    way could then read and change everything."""

    @field_validator("key_file")
    @classmethod
    def _belongs_to_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("cert_file", key) is None:
            raise ValueError("there is no cert_file that this key belongs to; write it, too")
        return key


class Tls:
    """The TLS settings of one backend, as the library wants them."""

    def __init__(
        self, options: TlsOptions, name: str, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._name = name
        self._timer = timer
        files = (options.ca_file, options.cert_file, options.key_file)
        self._files = [file for file in files if file is not None]
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Reads the files; raises `StartError` for one that does not serve."""
        self._seen, self._context = await asyncio.to_thread(self._read)
        self._look_at = self._timer() + _LOOK_EVERY
        if not self._options.verify:
            _log.warning(
                "backend %s: tls.verify is false: anybody who answers there is believed",
                self._name,
            )

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    def context(self) -> ssl.SSLContext:
        """What a connection made now is to use.

        At most once a second this has the files looked at, in a thread: what they
        hold anew is good for the next request, and this one does not wait for it.
        """
        if self._files and self._timer() >= self._look_at:
            self._look_at = self._timer() + _LOOK_EVERY
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
        return self._context

    async def _look(self) -> None:
        if await asyncio.to_thread(_state_of, self._files) == self._seen:
            return
        try:
            self._seen, self._context = await asyncio.to_thread(self._read)
        except StartError as error:
            # A pair is seldom replaced at once: it is tried again at every look.
            _log.warning("backend %s keeps its old TLS files: %s", self._name, error)
        else:
            _log.info("backend %s: its TLS files were read anew", self._name)

    def _read(self) -> tuple[Any, ssl.SSLContext]:
        seen = _state_of(self._files)  # first: a change while they are read is seen next time
        return seen, (_context if self._files else _shared)(self._options)


def _state_of(files: list[Path]) -> list[tuple[int, int, int] | None]:
    return [_state(file) for file in files]


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@cache
def _shared(options: TlsOptions) -> ssl.SSLContext:
    """For backends without files of their own: to read all that the system trusts takes long."""
    return _context(options)


def _context(options: TlsOptions) -> ssl.SSLContext:
    context = _believing(options.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.cert_file is not None:
        _show(context, options.cert_file, options.key_file)
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _believing(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    _check_readable(ca_file)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, ValueError):
        raise StartError(f"{ca_file}: no certificates in PEM form") from None


def _show(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    for file in (cert_file, key_file):
        if file is not None:
            _check_readable(file)
    try:
        context.load_cert_chain(cert_file, key_file, _ask_nobody)
    except _EncryptedError:
        raise StartError(f"{key_file or cert_file}: the key is encrypted; decrypt it") from None
    except (ssl.SSLError, ValueError):
        files = cert_file if key_file is None else f"{cert_file} and {key_file}"
        raise StartError(f"{files}: not a certificate and its key, in PEM form") from None


def _check_readable(file: Path) -> None:
    """The library's errors do not name the file."""
    try:
        file.read_bytes()
    except OSError as error:
        raise StartError(f"{file}: cannot be read: {error.strerror}") from None


class _EncryptedError(Exception):
    """The key cannot be read without a password."""


def _ask_nobody() -> NoReturn:
    """Keeps the library from asking for the password on the terminal."""
    raise _EncryptedError
