"""The sockets of the listeners, and their addresses."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from tornado.netutil import bind_sockets

from tornado_idv.config.settings import TlsSettings
from tornado_idv.errors import StartError
from tornado_idv.files import load_certificate


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the server's TLS context: TLS 1.2 with AEAD cipher suites, or TLS 1.3.

    Raises `StartError` unless the files hold a certificate and its unencrypted key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings.cert_file, settings.key_file)
    return context


_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 shown in URLs, not bound


def bind(section: str, host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets that listen on an address; raises `StartError`.

    With ``reuse_port``, further ones may be bound to the same address.
    """
    try:
        return bind_sockets(port, host, reuse_port=reuse_port)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            f"change {section}.host or {section}.port"
        ) from None


def bind_each(section: str, host: str, port: int, count: int) -> list[list[socket.socket]]:
    """Return ``count`` times sockets on one address, of which each gets a share of the connections.

    They listen from now on. Raises `StartError`, also if another process listens there: any
    further socket could be bound beside its own (``SO_REUSEPORT``).
    """
    probe = bind(section, host, port)
    port = port_of(probe)
    for each in probe:
        each.close()
    return [bind(section, host, port, reuse_port=True) for _ in range(count)]


def port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the port of bound sockets."""
    return int(sockets[0].getsockname()[1])


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the base URL for requests from this machine, without a trailing slash."""
    host = _LOOPBACK_OF.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}"
