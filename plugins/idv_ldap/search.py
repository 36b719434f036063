"""The search for a nickname or a card number, and evidence for its "not found".

A server finds nothing by an attribute that may not be read, or by a constant that is misspelt.
"""

from __future__ import annotations

import asyncio
from math import inf
from weakref import WeakKeyDictionary

from idv_ldap.connection import SCOPES, Connection
from idv_ldap.entries import FilterTemplate
from idv_ldap.library import Ambiguous
from idv_ldap.options import LdapOptions
from idv_ldap.schema import Attributes
from tornado_idv import Broken

_MAX_AGE = 1.0
"""Seconds since a search found an entry, after which "not found" needs another one."""
_ENTRY = "(!(objectClass=organizationalUnit))"


class Search:
    """A search, and the value by which it last found an entry."""

    def __init__(self, options: LdapOptions, filter_: str) -> None:
        self._base, self._scope = options.base_dn, SCOPES[options.scope]
        self.template = FilterTemplate(filter_)
        self._witness: str | None = None
        self._has_found = False
        self._seen_at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self._lock = asyncio.Lock()

    async def find(
        self, connection: Connection, value: str, attributes: list[str]
    ) -> list[Attributes]:
        """Return the entries, at most two.

        Raises `Broken` for none, unless the filter finds another one, or the connection found one
        less than a second ago. A tree that was empty from the start has no users.
        """
        began = asyncio.get_running_loop().time()
        filter_ = self.template.render(value)
        found = await connection.search(self._base, self._scope, filter_, attributes)
        if found:
            self._witness, self._seen_at[connection], self._has_found = value, began, True
        else:
            async with self._lock:
                await self._confirm(connection)
        return found

    async def _confirm(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._seen_at.get(connection, -inf) < _MAX_AGE:
            return
        template = self.template
        if self._witness is None or not await self._finds(connection, self._witness):
            attributes = [template.attribute] if template.attribute else []
            found = await self.first(connection, template.any, attributes)
            if not found:
                if not self._has_found and not await self.first(connection, _ENTRY, []):
                    return
                raise Broken(
                    f"the filter finds no entry for any value ({template.any}): there is none, "
                    "or bind.dn may not read an attribute of the filter"
                )
            for values in found[0].values():
                self._witness = values[0].decode()
                if not await self._finds(connection, self._witness):
                    failure = Broken(f"the server finds no {template.attribute} by its index")
                    connection.lose(failure)  # Samba may find it on another
                    raise failure
        self._seen_at[connection], self._has_found = now, True

    async def _finds(self, connection: Connection, value: str) -> bool:
        return bool(await self.first(connection, self.template.render(value), []))

    async def first(
        self, connection: Connection, filter_: str, attributes: list[str]
    ) -> list[Attributes]:
        """Return the first entry that another filter finds, if there is one."""
        try:
            return await connection.search(self._base, self._scope, filter_, attributes, first=True)
        except Ambiguous:  # of a server that knows no pages
            return [{}]
