"""The import of python-ldap, and the conversion of its errors.

This module sets ``LDAPNOINIT``. Otherwise, libldap would read ``ldap.conf``, ``~/.ldaprc`` and
``LDAP*`` variables, and these could change trusted certificates, limits and the use of aliases.
"""

import os
import re

os.environ["LDAPNOINIT"] = "1"

import ldap
import ldap.controls
import ldap.filter

from tornado_idv import Broken, LookupFailed, Unavailable

__all__ = ["REFUSED", "Ambiguous", "ldap", "to_lookup_failed"]
_UNAVAILABLE: dict[type[Exception], str] = {
    ldap.ADMINLIMIT_EXCEEDED: "the search exceeded a limit of the server: an index may be missing",
    ldap.BUSY: "the server is busy",
    ldap.CONNECT_ERROR: "the server cannot be reached, or the TLS handshake failed",
    ldap.SERVER_DOWN: "the server cannot be reached, or the connection was lost",
    ldap.TIMELIMIT_EXCEEDED: "the search took too long on the server: an index may be missing",
    ldap.TIMEOUT: "the server did not respond in time",
    ldap.UNAVAILABLE: "the server is starting or shutting down",
}
_BROKEN: dict[type[Exception], str] = {
    ldap.CONFIDENTIALITY_REQUIRED: "the server requires TLS: write ldaps:// or start_tls: true",
    ldap.FILTER_ERROR: "the filter is not valid (RFC 4515)",
    ldap.INAPPROPRIATE_AUTH: "the server does not accept this kind of bind for bind.dn",
    ldap.INAPPROPRIATE_MATCHING: "an attribute of the filter cannot be compared in this way",
    ldap.INSUFFICIENT_ACCESS: "the access control of the server does not allow bind.dn to search",
    ldap.INVALID_CREDENTIALS: "the server refuses bind.dn or its password",
    ldap.INVALID_DN_SYNTAX: "base_dn or bind.dn is not a distinguished name",
    ldap.NO_SUCH_OBJECT: "base_dn does not exist, or bind.dn may not read it",
    ldap.OPERATIONS_ERROR: "the server refuses the search; Active Directory requires a bind",
    ldap.STRONG_AUTH_REQUIRED: "the server requires TLS, or a stronger bind: write ldaps:// or "
    "start_tls: true",
    ldap.UNDEFINED_TYPE: "an attribute of the filter does not exist",
    ldap.UNWILLING_TO_PERFORM: "the configuration of the server does not allow the operation",
}


class Ambiguous(Broken):
    """Raised if a search finds more than one entry."""


REFUSED = (
    ldap.CONSTRAINT_VIOLATION,
    ldap.INAPPROPRIATE_AUTH,
    ldap.INVALID_CREDENTIALS,
    ldap.UNWILLING_TO_PERFORM,
)
"""Errors of a bind with wrong credentials or a locked account. Each server uses some of them."""


def to_lookup_failed(error: Exception) -> LookupFailed:
    """Return the `Unavailable` or `Broken` for an error of python-ldap.

    If Active Directory refuses a bind, the reason includes its code, such as ``data 52e``.
    """
    if isinstance(error, LookupFailed):
        return error
    if isinstance(error, ldap.SIZELIMIT_EXCEEDED):
        return Ambiguous("more than one user for one query")
    if isinstance(error, ValueError):  # from `set_option`, for an unusable file
        return Broken("a file in the option tls cannot be used")
    if isinstance(error, OSError):
        kind = ldap.TIMEOUT if isinstance(error, TimeoutError) else ldap.SERVER_DOWN
        return Unavailable(_UNAVAILABLE[kind])
    if reason := _UNAVAILABLE.get(type(error)):
        return Unavailable(reason)
    reason = _BROKEN.get(type(error)) or f"the server responded with {type(error).__name__}"
    code = re.search(r"AcceptSecurityContext error, (data [0-9a-f]+)", str(error))
    return Broken(f"{reason} ({code[1]})" if code else reason)
