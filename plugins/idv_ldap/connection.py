"""One bound connection to an LDAP server, with searches pipelined on the event loop.

libldap blocks, but not on a socket that does not: a response that has arrived in part is read
later, and a request that does not fit is an error. Only connecting needs a thread.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from typing import Any, NamedTuple

from idv_ldap.entries import EntryMapper
from idv_ldap.handshake import handshake
from idv_ldap.library import REFUSED, explain_refusal, ldap, to_lookup_failed
from idv_ldap.options import BindOptions, LdapOptions
from idv_ldap.refusals import REFUSALS, Refused
from idv_ldap.replica import check_loaded
from idv_ldap.schema import Attributes, AttributeTypes, check_names
from tornado_idv import Broken, LookupFailed, Unavailable

SCOPES = {
    "base": ldap.SCOPE_BASE,
    "onelevel": ldap.SCOPE_ONELEVEL,
    "subtree": ldap.SCOPE_SUBTREE,
}
_TLS_1_2 = 0x303
_KEEP_ALIVE = {
    ldap.OPT_X_KEEPALIVE_IDLE: 60,
    ldap.OPT_X_KEEPALIVE_INTERVAL: 10,
    ldap.OPT_X_KEEPALIVE_PROBES: 3,
}
_NO_ATTRIBUTES = ["1.1"]
"""RFC 4511, section 4.5.1.8; an empty list would mean all."""
_FIRST_PAGE = [ldap.controls.SimplePagedResultsControl(size=1, cookie="")]
_LIMIT = 2
"""Entries of a search: the second shows that the first is not the only one."""


class Bound(NamedTuple):
    """A bound connection of python-ldap, and the state of its server."""

    handle: Any
    types: AttributeTypes
    has_context_csn: bool


def connect(options: LdapOptions, uri: str, *, is_replica: bool | None) -> Bound:
    """Connect to a server and bind.

    Blocks; raises errors of python-ldap, `Refused`, and `LookupFailed` for a refused certificate
    and as `check_loaded` and `check_names`.
    """
    refusal = handshake(options, uri) if uses_tls(options, uri) else None
    handle = ldap.initialize(uri)
    handle.timeout = options.connect_timeout
    _set_options(handle, options, uri)
    try:
        if options.start_tls:
            handle.start_tls_s()
        elif uses_tls(options, uri):
            _shake_hands(handle)
        with REFUSALS.attempt(options):
            try:
                _bind(handle, options.bind)
            except REFUSED as error:
                raise Refused(f"{uri}: {explain_refusal(error)}") from None
    except (ldap.CONNECT_ERROR, ldap.SERVER_DOWN):
        if refusal is not None:
            raise Broken(f"the certificate is refused: {refusal}") from None
        raise
    has_context_csn = check_loaded(handle, options.base_dn, is_replica=is_replica)
    types = check_names(handle, options, EntryMapper(options).attributes)
    return Bound(handle, types, has_context_csn)


def _shake_hands(handle: Any) -> None:
    """Let libldap connect, so that a handshake that hangs keeps no other attempt to bind away."""
    try:
        handle.search_s("", ldap.SCOPE_BASE, attrlist=_NO_ATTRIBUTES)
    except ldap.LDAPError as error:
        details = error.args[0] if error.args else {}
        if details.get("result", -1) < 0:  # of libldap, and not of a server that requires a bind
            raise


def _bind(handle: Any, bind: BindOptions | None) -> None:
    if bind is not None and bind.sasl is not None:
        handle.sasl_bind_s("", "EXTERNAL", "")  # an interactive one would block all threads
    elif bind is not None and bind.password is not None:
        handle.simple_bind_s(bind.dn, bind.password.get_secret_value())
    else:
        handle.simple_bind_s("", "")


def uses_tls(options: LdapOptions, uri: str) -> bool:
    """Return whether the connection to a server is encrypted."""
    return options.start_tls or uri.startswith("ldaps:")


def _set_options(handle: Any, options: LdapOptions, uri: str) -> None:
    """Set every option that libldap would otherwise take from its surroundings.

    For TLS those are which certificates are trusted, and our own; to read the former takes 10 ms.
    """
    values: dict[int, Any] = {
        ldap.OPT_PROTOCOL_VERSION: 3,
        ldap.OPT_REFERRALS: 0,
        ldap.OPT_DEREF: ldap.DEREF_NEVER,
        ldap.OPT_NETWORK_TIMEOUT: options.connect_timeout,
        ldap.OPT_TIMEOUT: options.connect_timeout,
        **_KEEP_ALIVE,
    }
    if uses_tls(options, uri):
        tls, paths = options.tls, ssl.get_default_verify_paths()
        values |= {
            ldap.OPT_X_TLS_REQUIRE_CERT: ldap.OPT_X_TLS_DEMAND,
            ldap.OPT_X_TLS_PROTOCOL_MIN: _TLS_1_2,
            ldap.OPT_X_TLS_CACERTFILE: str(tls.ca_file or paths.cafile or paths.openssl_cafile),
        }
        if tls.cert_file is not None and tls.key_file is not None:
            values[ldap.OPT_X_TLS_CERTFILE] = str(tls.cert_file)
            values[ldap.OPT_X_TLS_KEYFILE] = str(tls.key_file)
        values[ldap.OPT_X_TLS_NEWCTX] = 0  # last: it reads those before it
    for option, value in values.items():
        handle.set_option(option, value)


class Connection:
    """A bound connection; ``lost`` is done when it is not to be used any more."""

    def __init__(self, bound: Bound, uri: str, *, ignores_references: bool) -> None:
        self.uri = uri
        self._handle = handle = bound.handle
        self._types = bound.types
        self._ignores_references = ignores_references
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LookupFailed] = self._loop.create_future()
        self._pending: dict[int, asyncio.Future[list[Any]]] = {}
        self._received = 0
        self._is_retired = False
        self._descriptor = handle.fileno()
        os.set_blocking(self._descriptor, False)
        self._loop.add_reader(self._descriptor, self._on_readable)

    @property
    def in_flight(self) -> int:
        """The number of searches without a response."""
        return len(self._pending)

    async def search(
        self, base: str, scope: int, filter_: str, attributes: list[str], *, first: bool = False
    ) -> list[Attributes]:
        """Return the attributes of at most two entries; raises `Unavailable` or `Broken`.

        With ``first`` they are those of one entry, as far as the server knows pages (RFC 2696).
        """
        if self.lost.done():
            raise self.lost.result().copy()
        received = self._received
        requested = attributes or _NO_ATTRIBUTES
        try:
            number = self._handle.search_ext(
                base,
                scope,
                filter_,
                requested,
                serverctrls=_FIRST_PAGE if first else None,
                sizelimit=_LIMIT,
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
            if self._received == received:
                self.lose(Unavailable("the server did not respond in time"))
            if not self.lost.done():
                with suppress(ldap.LDAPError):
                    self._handle.abandon_ext(number)
            raise
        finally:
            del self._pending[number]
            self._close_if_retired()
        # Continuation references have no name; other servers are not searched.
        entries = [entry for name, entry in found if name is not None]
        if found and not entries and not self._ignores_references:
            text = "a part of base_dn is on other servers, which are not searched"
            raise Unavailable(text, counts_against_breaker=False)
        return [self._types.select(entry, attributes) for entry in entries]

    def retire(self) -> None:
        """Close the connection after the searches in flight."""
        self._is_retired = True
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._is_retired and not self._pending:
            self.lose(Unavailable("the connection was replaced"))

    def lose(self, failure: LookupFailed) -> None:
        """Close the connection; searches in flight fail."""
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
            result, failure = None, None
            try:
                kind, result, number, _ = self._handle.result3(ldap.RES_ANY, 1, 0)
            except ldap.LDAPError as error:
                # The error of one search; python-ldap raises it here, with its number.
                number, failure = _number_of(error), error
                if number is None:
                    self.lose(to_lookup_failed(error))
                    return
            else:
                if kind is None:
                    return
            self._received += 1
            future = self._pending.get(number)
            if future is None or future.done():
                continue
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result or [])


def _number_of(error: Exception) -> int | None:
    details = error.args[0] if error.args else None
    number = details.get("msgid") if isinstance(details, dict) else None
    return number if isinstance(number, int) and number > 0 else None
