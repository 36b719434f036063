"""The search for a nickname or a card number, and the evidence needed for "not found".

An empty result alone is no evidence: the filter may have an unreadable attribute or a typing error.
"""

import asyncio
import re
from math import inf
from weakref import WeakKeyDictionary

from idv_ldap.connection import BoundConnection
from idv_ldap.errors import Ambiguous, ldap
from idv_ldap.server import Attributes
from tornado_idv import Broken, StartError

_MAX_AGE = 1.0
"""Seconds for which a successful search is evidence for "not found"."""
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_ASSERTION = re.compile(r"\(\s*([^\s()=~<>:]+)[^()=]*=[^()]*\{[a-z_]+\}[^()]*\)")
_WHOLE_VALUE = re.compile(r"\(([^\s()=~<>:]+)(?::[^()=]*:)?=\{[a-z_]+\}\)")
_NO_SERVER = "ldapi://%2Fnone"
_ANY = "(objectClass=*)"
_ENTRY = "(|(!(objectClass=organizationalUnit))(hasSubordinates=TRUE))"
"""Filter for all entries except empty organizational units. On servers with ``hasSubordinates``, a
unit with unreadable entries is not empty. ``bind.dn`` must be able to read ``objectClass``."""


class Search:
    """A search by a filter with a placeholder, with the evidence that the filter finds entries.

    ``any`` is the filter with ``*`` as value. ``attribute`` is the attribute to compare with the
    placeholder, or ``None`` if the filter compares several attributes, or only a part of a value.
    Raises `StartError` for an invalid filter.
    """

    def __init__(self, filter_: str, attributes: list[str]) -> None:
        self._parts = _PLACEHOLDER.split(filter_)
        present = _ASSERTION.sub(r"(\1=*)", filter_)
        self.any = _ANY if _PLACEHOLDER.search(present) else present
        names = _WHOLE_VALUE.findall(filter_)
        self.attribute = names[0] if len(names) == len(self._parts) - 1 == 1 else None
        try:
            # libldap parses the filter before it fails to connect.
            ldap.initialize(_NO_SERVER).search_ext("", ldap.SCOPE_BASE, self.render("x"))
        except ldap.FILTER_ERROR:
            raise StartError(f"the filter {filter_} is not valid (RFC 4515)") from None
        except ldap.LDAPError:
            pass
        self._attributes = attributes
        self._witness: str | None = None
        """The nickname or card number in the last entry found. It is empty if it could not be read,
        and ``None`` until an entry is found."""
        self._seen_at: WeakKeyDictionary[BoundConnection, float] = WeakKeyDictionary()
        self._lock = asyncio.Lock()

    def render(self, value: str) -> str:
        """Return the filter with the escaped value (RFC 4515, section 3)."""
        escaped: str = ldap.filter.escape_filter_chars(value)
        return escaped.join(self._parts)

    async def find(self, connection: BoundConnection, value: str) -> Attributes | None:
        """Return the attributes of the entry, or ``None`` for "not found".

        An empty result means "not found" if the filter finds another entry, or found one on this
        connection in the last second. Otherwise, raises `Broken`. An empty tree is accepted as long
        as the filter has never found an entry.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await connection.search(self.render(value), self._attributes)
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
        if self._witness and await connection.first(self.render(self._witness)) is not None:
            return
        found = await connection.first(self.any, self.attribute)
        if found is None:
            seen, entry = [await connection.first(each, scope="subtree") for each in (_ANY, _ENTRY)]
            if seen is not None and entry is None and self._witness is None:
                return
            raise Broken(
                f"the filter finds no entry for any value ({self.any}): no such entry exists, "
                "or bind.dn has no right to read the entry or an attribute of the filter"
            )
        self._witness = next((values[0].decode() for values in found.values()), "")
        if self._witness and await connection.first(self.render(self._witness)) is None:
            failure = Broken(f"the server's index lacks a stored {self.attribute}")
            connection.lose(failure)  # Samba may find it on a new connection
            raise failure
