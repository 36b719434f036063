"""One bound connection to an LDAP server, with pipelined searches on the event loop.

Only connecting and the bind need a thread. After the bind, the socket is non-blocking, so libldap
does not block, either. If a response is incomplete, libldap reads the rest later. A request larger
than the send buffer fails.
"""

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from idv_ldap.entries import EntryMapper
from idv_ldap.errors import REFUSED, Ambiguous, ldap, to_lookup_failed
from idv_ldap.options import LdapOptions
from idv_ldap.refusals import REFUSALS, Refused
from idv_ldap.server import Attributes, Types, check_loaded, identify, read_types, select
from tornado_idv import Broken, LookupFailed, Unavailable

_TLS_1_2 = 0x303
_START_TLS = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037"
"""The encoded StartTLS request (RFC 4511, section 4.14)."""
_NO_ATTRIBUTES = ["1.1"]
"""The list that requests no attributes (RFC 4511, 4.5.1.8). An empty list would request all."""
_FIRST_PAGE = ldap.controls.SimplePagedResultsControl(size=1, cookie="")
_LIMIT = 2
"""Maximum number of entries to return for a search. Two entries already make a user ambiguous."""

Bound = tuple[Any, Types, bool, str]
"""The result of `connect`: a connection of python-ldap, the attribute types of the server, whether
the server has a ``contextCSN``, and an identifier of the server."""


def connect(options: LdapOptions, uri: str, *, is_replica: bool | None) -> Bound:
    """Connect to a server and bind. This function blocks.

    Raises `Refused` for rejected credentials, and `LookupFailed` for an untrusted certificate, a
    replica being loaded or a missing attribute. Also raises `OSError` and errors of python-ldap.
    """
    bind = options.bind
    refusal = _try_tls(options, uri) if options.uses_tls(uri) else None
    handle = ldap.initialize(uri)
    _set_options(handle, options, uri)
    try:
        if options.start_tls:
            handle.start_tls_s()
        elif options.uses_tls(uri):
            # The request makes libldap connect now. In `attempt`, a handshake that hangs would
            # block other processes.
            handle.abandon(handle.search_ext("", ldap.SCOPE_BASE, attrlist=_NO_ATTRIBUTES))
        with REFUSALS.attempt(options.credentials, options.connect_timeout):
            try:
                if bind is None:
                    handle.simple_bind_s("", "")
                elif bind.password is None:
                    handle.sasl_bind_s("", "EXTERNAL", "")  # an interactive bind blocks all threads
                else:
                    handle.simple_bind_s(bind.dn, bind.password.get_secret_value())
            except REFUSED as error:
                raise Refused(f"{uri}: {to_lookup_failed(error).reason}") from None
    except (ldap.CONNECT_ERROR, ldap.SERVER_DOWN):
        if refusal is not None:
            raise Broken(f"the certificate is refused: {refusal}") from None
        raise
    has_context_csn = check_loaded(handle, options.base_dn, is_replica=is_replica)
    names = (*options.filter_attributes, *EntryMapper(options).attributes)
    return handle, read_types(handle, options, names), has_context_csn, identify(handle)


def _try_tls(options: LdapOptions, uri: str) -> str | None:
    """Make a trial TLS handshake. Return why the certificate is not trusted, or ``None``.

    The trial is needed because the later handshake of libldap has no timeout and reports no reason.
    libldap reports other TLS errors later. Raises `OSError` for an unreachable server or a timeout.
    """
    server: Any = urlsplit(uri)
    try:
        context = ssl.create_default_context(cafile=options.tls.ca_file)
    except OSError:
        raise ValueError("ca_file") from None  # as python-ldap does for the other files
    with socket.create_connection((server.hostname, server.port), options.connect_timeout) as sock:
        if options.start_tls:
            sock.sendall(_START_TLS)
            sock.recv(1024)
        try:
            context.wrap_socket(sock, server_hostname=server.hostname).close()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except TimeoutError:
            raise
        except OSError:  # such as a reset by a server that requires a client certificate
            return None
    return None


def _set_options(handle: Any, options: LdapOptions, uri: str) -> None:
    """Set every option that libldap would otherwise read from the environment or from its files.

    For a TLS connection, this takes 10 ms, because libldap reads the trusted certificates.
    """
    values: dict[int, Any] = {
        ldap.OPT_REFERRALS: 0,
        ldap.OPT_DEREF: ldap.DEREF_NEVER,
        ldap.OPT_NETWORK_TIMEOUT: options.connect_timeout,
        ldap.OPT_TIMEOUT: options.connect_timeout,
        ldap.OPT_X_KEEPALIVE_IDLE: 60,
        ldap.OPT_X_KEEPALIVE_INTERVAL: 10,
        ldap.OPT_X_KEEPALIVE_PROBES: 3,
    }
    if options.uses_tls(uri):
        tls, paths = options.tls, ssl.get_default_verify_paths()
        values |= {
            ldap.OPT_X_TLS_REQUIRE_CERT: ldap.OPT_X_TLS_DEMAND,
            ldap.OPT_X_TLS_PROTOCOL_MIN: _TLS_1_2,
            ldap.OPT_X_TLS_CACERTFILE: str(tls.ca_file or paths.cafile or paths.openssl_cafile),
        }
        if tls.cert_file is not None:
            values[ldap.OPT_X_TLS_CERTFILE] = str(tls.cert_file)
            values[ldap.OPT_X_TLS_KEYFILE] = str(tls.key_file)
        values[ldap.OPT_X_TLS_NEWCTX] = 0  # last, since it applies the other TLS options
    for option, value in values.items():
        handle.set_option(option, value)


class BoundConnection:
    """A bound connection to a server.

    When the connection is closed, the future ``lost`` gets the cause as its result. ``place`` is
    the index of the server in ``uris``, and ``server`` identifies the server.
    """

    def __init__(
        self, handle: Any, types: Types, options: LdapOptions, place: int = 0, server: str = ""
    ) -> None:
        self._handle, self._types, self._options = handle, types, options
        self.place, self.server = place, server
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LookupFailed] = self._loop.create_future()
        self._pending: dict[int, asyncio.Future[list[Any]]] = {}
        self._received = 0
        self._descriptor = handle.fileno()
        os.set_blocking(self._descriptor, False)
        self._loop.add_reader(self._descriptor, self._on_readable)

    @property
    def in_flight(self) -> int:
        """The number of searches without a response."""
        return len(self._pending)

    async def search(self, filter_: str, attributes: list[str]) -> list[Attributes]:
        """Return the attributes of at most two entries. Raises `Unavailable` or `Broken`."""
        found = await self._search(filter_, attributes)
        return [select(self._types, entry, attributes) for entry in found]

    async def first(
        self, filter_: str, attribute: str | None = None, scope: str = ""
    ) -> Attributes | None:
        """Return any matching entry, or ``None``. Raises `Unavailable` or `Broken`.

        ``scope`` is by default the option. The entry contains only ``attribute``, possibly under
        another name, such as ``title;lang-en``. If the server only reports matches, it is empty.
        """
        try:
            names, controls = ([], None) if attribute is None else ([attribute], [_FIRST_PAGE])
            found = await self._search(filter_, names, controls, scope)
        except Ambiguous:
            return {}
        except LookupFailed as error:  # a limit of the server may apply to this search only
            error.counts_against_breaker = self.lost.done()
            raise
        return found[0] if found else None

    async def _search(
        self, filter_: str, attributes: list[str], controls: Any = None, scope: str = ""
    ) -> list[Attributes]:
        if self.lost.done():
            raise self.lost.result().copy()
        received, options = self._received, self._options
        names = attributes or _NO_ATTRIBUTES
        depth = getattr(ldap, f"SCOPE_{(scope or options.scope).upper()}")
        try:
            number = self._handle.search_ext(
                options.base_dn, depth, filter_, names, serverctrls=controls, sizelimit=_LIMIT
            )
        except ldap.LDAPError as error:
            failure = to_lookup_failed(error)
            if not isinstance(error, ldap.FILTER_ERROR):
                self.lose(failure)
            raise failure from None
        self._pending[number] = future = self._loop.create_future()
        try:
            found = await future
        except ldap.LDAPError as error:
            raise to_lookup_failed(error) from None
        except asyncio.CancelledError:
            if self._received == received:  # no search got a response meanwhile
                self.lose(Unavailable("the server did not respond in time"))
            if not self.lost.done():
                with suppress(ldap.LDAPError):
                    self._handle.abandon_ext(number)
            raise
        finally:
            del self._pending[number]
        # Continuation references to other servers have no name. They are not followed.
        entries = [entry for name, entry in found if name is not None]
        if found and not entries and options.references == "fail":
            text = "a part of base_dn is on other servers; other servers are not searched"
            raise Unavailable(text, counts_against_breaker=False)
        return entries

    def lose(self, failure: LookupFailed) -> None:
        """Close the connection. Searches in progress fail with a copy of ``failure``."""
        if self.lost.done():
            return
        self.lost.set_result(failure)
        self._loop.remove_reader(self._descriptor)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(failure.copy())
        with suppress(ldap.LDAPError):
            self._handle.unbind_ext()

    def _on_readable(self) -> None:
        while not self.lost.done():
            try:
                kind, result, number, _ = self._handle.result3(ldap.RES_ANY, 1, 0)
                if kind is None:
                    return
            except ldap.LDAPError as error:
                # python-ldap raises errors of single searches here, with the number of the search.
                details = error.args[0] if error.args else None
                number = details.get("msgid", 0) if isinstance(details, dict) else 0
                if number <= 0:
                    self.lose(to_lookup_failed(error))
                    return
                result = error
            self._received += 1
            future = self._pending.get(number)
            if future is None or future.done():
                continue
            if isinstance(result, ldap.LDAPError):
                future.set_exception(result)
            else:
                future.set_result(result)
