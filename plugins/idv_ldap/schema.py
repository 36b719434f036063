"""Check of the names in a configuration against a server, which ignores what it does not know.

An unknown attribute in a filter finds nothing, in OpenLDAP without an error (RFC 4511, section
4.5.1.7, "Undefined"): every user would be "not known".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from idv_ldap.library import ldap
from idv_ldap.options import LdapOptions
from tornado_idv import Broken

_log = logging.getLogger(__name__)
_IN_FILTER = re.compile(r"\(\s*([A-Za-z][A-Za-z0-9-]*)[^()=]*=")
_NAMES = re.compile(rb"\sNAME\s+(?:'[^']*'|\([^)]*\))")
_NAME = re.compile(rb"'([^']*)'")


def check_names(handle: Any, options: LdapOptions, attributes: Iterable[str]) -> None:
    """Raise `Broken` where the server has no ``base_dn``, or not the attributes of the filters.

    ``attributes`` are those of expressions; blocks, and raises errors of python-ldap.
    """
    known = _known(handle, options.base_dn)
    if not known:
        text = "backend %s: the schema cannot be read: unknown attributes would find no user"
        _log.warning(text, options.name)
        return
    filters = [name for text in options.searches.values() for name in _IN_FILTER.findall(text)]
    for name in (*filters, *attributes):
        base = name.partition(";")[0]
        if base.lower() not in known and not base[0].isdigit():  # an OID
            raise Broken(f"the server has no attribute {base}: see the filters and response")


def _known(handle: Any, base_dn: str) -> set[str]:
    """Return the names of all attributes in lower case; none if the schema cannot be read."""
    subschema = "subschemaSubentry"
    names = _values(
        handle.search_s(base_dn, ldap.SCOPE_BASE, "(objectClass=*)", [subschema]), subschema
    )
    if not names:
        return set()
    try:
        schema = handle.search_s(
            names[0].decode(), ldap.SCOPE_BASE, "(objectClass=subschema)", ["attributeTypes"]
        )
    except ldap.NO_SUCH_OBJECT:
        return set()
    return {
        name.decode().lower()
        for each in _values(schema, "attributeTypes")
        for names_of_type in _NAMES.findall(each)
        for name in _NAME.findall(names_of_type)
    }


def _values(found: Any, attribute: str) -> list[bytes]:
    """Return the values of an attribute; Active Directory writes ``subSchemaSubEntry``."""
    entries = [entry.items() for name, entry in found if name is not None]
    return [
        value
        for items in entries
        for key, values in items
        if key.lower() == attribute.lower()
        for value in values
    ]
