"""TLS settings for connections to an upstream. Changed files apply to new connections."""

import logging
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo, field_validator

from tornado_idv import (
    ConfigPath,
    DaemonThread,
    FileSignature,
    Options,
    StartError,
    load_certificate,
    require_file,
)

_log = logging.getLogger(__name__)

_CHECK_INTERVAL = 1.0


class TlsOptions(Options):
    """The trusted certificates, and the client certificate."""

    ca_file: ConfigPath | None = None
    """The trusted certificate authorities in PEM. By default, the system's authorities."""
    cert_file: ConfigPath | None = None
    """The client certificate and its chain in PEM."""
    key_file: ConfigPath | None = None
    """The unencrypted key of ``cert_file``. It is not needed if ``cert_file`` contains the key."""
    verify: bool = True
    """Verify the certificate of the upstream. Use false only in tests: anyone in the network could
    read and change all data."""

    @field_validator("key_file")
    @classmethod
    def _belongs_to_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("cert_file", key) is None:
            raise ValueError("key_file needs cert_file, the certificate of this key")
        return key


class Tls:
    """The SSL context of one backend. The function ``timer`` returns a time in seconds."""

    def __init__(self, options: TlsOptions, name: str, timer: Callable[[], float]) -> None:
        self._options = options
        self._name = name
        self._timer = timer
        self._files = [*filter(None, (options.ca_file, options.cert_file, options.key_file))]
        self._context: ssl.SSLContext

    async def open(self) -> None:
        """Load the files. Raises `StartError` for an invalid file."""
        self._loaded, self._context = await DaemonThread("TLS files")(self._load)
        self._check_at = self._timer() + _CHECK_INTERVAL
        if not self._options.verify:
            text = "backend %s: tls.verify is false: certificates are not verified"
            _log.warning(text, self._name)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Reload changed files, at most once per second.

        If the files are invalid, log a warning, and try again a second later, because the
        certificate may be replaced shortly before its key.
        """
        if self._files and self._timer() >= self._check_at:
            self._check_at = self._timer() + _CHECK_INTERVAL
            if [*map(FileSignature.find, self._files)] != self._loaded:
                try:
                    self._loaded, self._context = self._load()
                except StartError as error:
                    _log.warning("backend %s: TLS files not reloaded: %s", self._name, error)
                else:
                    _log.info("backend %s: TLS files reloaded", self._name)
        return self._context

    def _load(self) -> tuple[Any, ssl.SSLContext]:
        # This comes first, so a change during the load is detected.
        signatures = [*map(FileSignature.find, self._files)]
        return signatures, (_context if self._files else _shared_context)(self._options)


def _context(options: TlsOptions) -> ssl.SSLContext:
    if options.ca_file is None:
        context = ssl.create_default_context()
    else:
        require_file(options.ca_file)  # errors of the TLS library do not name the file
        try:
            context = ssl.create_default_context(cafile=options.ca_file)
        except OSError:
            raise StartError(f"{options.ca_file}: no certificates in PEM form") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the system may allow older versions
    if options.cert_file is not None:
        load_certificate(context, options.cert_file, options.key_file)
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_shared_context = cache(_context)
"""Backends without files share a context, because reading the system's authorities is slow."""
