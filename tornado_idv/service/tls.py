"""The certificate of the public listener."""

from __future__ import annotations

import ssl
from typing import NoReturn

from tornado_idv.config.settings import TlsSettings
from tornado_idv.errors import StartError
from tornado_idv.files import read_file


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the server's TLS context: TLS 1.2 with AEAD cipher suites, or TLS 1.3.

    Raises `StartError` unless the files hold a certificate and its unencrypted key.
    """
    files = settings.cert_file, settings.key_file
    for file in files:
        try:
            read_file(file)
        except OSError as error:  # the TLS library's own error would not name the file
            raise StartError(f"{file}: cannot be read: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(*files, password=_refuse_password)
    except _EncryptedKey:
        raise StartError(f"{settings.key_file}: the key is encrypted; decrypt it") from None
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = "the key is of another one" if mismatch else "not a certificate and key in PEM"
        raise StartError(f"{files[0]} and {files[1]} cannot be used for TLS: {reason}") from None
    return context


class _EncryptedKey(Exception):
    """The private key is protected by a password."""


def _refuse_password() -> NoReturn:
    """Keep the TLS library from asking for the password on the terminal."""
    raise _EncryptedKey
