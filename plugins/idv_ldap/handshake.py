"""A TLS handshake that ends in time and says why it fails; that of libldap does neither."""

from __future__ import annotations

import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from idv_ldap.options import LdapOptions

_START_TLS = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037"
"""RFC 4511, section 4.14."""
_MAX_RESPONSE = 1024


def handshake(options: LdapOptions, uri: str) -> str | None:
    """Connect to a server; return why its certificate is refused, if it is.

    libldap decides whether a handshake succeeds: other failures are ignored. Blocks; raises
    `OSError` for a server that cannot be reached or does not respond in time.
    """
    parts: Any = urlsplit(uri)
    try:
        context = ssl.create_default_context(cafile=options.tls.ca_file)
    except OSError:
        raise ValueError("ca_file") from None  # as of python-ldap, for its files
    address = parts.hostname, parts.port
    try:
        with socket.create_connection(address, timeout=options.connect_timeout) as sock:
            if options.start_tls:
                sock.sendall(_START_TLS)
                sock.recv(_MAX_RESPONSE)
            with context.wrap_socket(sock, server_hostname=parts.hostname):
                return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError:
        return None
