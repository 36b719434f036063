"""The search for a nickname or a card number, and the evidence needed for "not found".

An empty result alone is no evidence: the filter may have an unreadable attribute or a typing error.
"""

import asyncio
from math import inf
from weakref import WeakKeyDictionary

from idv_ldap.connection import BoundConnection
from idv_ldap.entries import FilterTemplate
from idv_ldap.errors import Ambiguous
from idv_ldap.server import Attributes
from tornado_idv import Broken

_MAX_AGE = 1.0
"""Seconds for which a successful search is evidence for "not found"."""
_ANY = "(objectClass=*)"
_ENTRY = "(|(!(objectClass=organizationalUnit))(hasSubordinates=TRUE))"
"""Filter for all entries except empty organizational units. On servers with ``hasSubordinates``, a
unit with unreadable entries is not empty. ``bind.dn`` must be able to read ``objectClass``."""


class Search:
    """A search for a user's entry, with the evidence that the filter finds entries."""

    def __init__(self, filter_: str, attributes: list[str]) -> None:
        self.template = FilterTemplate(filter_)
        self._attributes = attributes
        self._witness: str | None = None
        """The nickname or card number in the last entry found. It is empty if it could not be read,
        and ``None`` until an entry is found."""
        self._seen_at: WeakKeyDictionary[BoundConnection, float] = WeakKeyDictionary()
        self._lock = asyncio.Lock()

    async def find(self, connection: BoundConnection, value: str) -> Attributes | None:
        """Return the attributes of the entry, or ``None`` for "not found".

        An empty result means "not found" if the filter finds another entry, or found one on this
        connection in the last second. Otherwise, raises `Broken`. An empty tree is accepted as long
        as the filter has never found an entry.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await connection.search(self.template.render(value), self._attributes)
        if len(found) > 1:
            raise Ambiguous("more than one user for one query")
        if found:
            self._witness, self._seen_at[connection] = value, began
            return found[0]
        async with self._lock:
            now = clock()
            if now - self._seen_at.get(connection, -inf) >= _MAX_AGE:
                await self._confirm(connection)
                self._seen_at[connection] = now
        return None

    async def _confirm(self, connection: BoundConnection) -> None:
        """Raise `Broken` if the filter finds no entry. Accept a tree that was always empty."""
        template = self.template
        if self._witness and await connection.first(template.render(self._witness)) is not None:
            return
        found = await connection.first(template.any, template.attribute)
        if found is None:
            seen, entry = [await connection.first(each, scope="subtree") for each in (_ANY, _ENTRY)]
            if seen is not None and entry is None and self._witness is None:
                return
            raise Broken(
                f"the filter finds no entry for any value ({template.any}): no such entry exists, "
                "or bind.dn has no right to read the entry or an attribute of the filter"
            )
        self._witness = next((values[0].decode() for values in found.values()), "")
        if self._witness and await connection.first(template.render(self._witness)) is None:
            failure = Broken(f"the server's index lacks a stored {template.attribute}")
            connection.lose(failure)  # Samba may find it on a new connection
            raise failure
