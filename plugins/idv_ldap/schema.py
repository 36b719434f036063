"""Names of attributes, compared with the schema of a server.

A server ignores what it does not know: an unknown attribute in a filter finds nothing, in OpenLDAP
without an error (RFC 4511, section 4.5.1.7, "Undefined"), so that every user would be "not known".
And it returns values under names of its own, such as ``title;lang-en`` or ``ou``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from idv_ldap.library import ldap, read_entry
from idv_ldap.options import LdapOptions
from tornado_idv import Broken

_log = logging.getLogger(__name__)
_IN_FILTER = re.compile(r"\(\s*([A-Za-z0-9][A-Za-z0-9.-]*)[^()=]*=")
_TYPE = re.compile(r"\(\s*(\S+)(?:\s+NAME\s+('[^']*'|\([^)]*\)))?")
"""OID and names (RFC 4512, section 4.1.2)."""
_NAME = re.compile(r"'([^']*)'")

Attributes = dict[str, list[bytes]]


class AttributeTypes:
    """The attribute types of a schema; none if it cannot be read."""

    def __init__(self, definitions: Iterable[bytes] = ()) -> None:
        self._types: dict[str, str] = {}
        """The OID of each by its names, in lower case, and by itself."""
        for definition in definitions:
            if found := _TYPE.match(definition.decode(errors="replace")):
                names = (found[1], *_NAME.findall(found[2] or ""))
                self._types |= {name.lower(): found[1] for name in names}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._types

    def __bool__(self) -> bool:
        return bool(self._types)

    def select(self, attributes: Attributes, requested: Iterable[str]) -> Attributes:
        """Return the values by the names of the request, of which a server may return others.

        Raises `Broken` for values with options, or of a type, that were not requested: those of a
        type that is derived from a requested one, for example, which would seem to be missing.
        """
        keys = {name: self._key(name) for name in requested}
        selected: Attributes = {}
        for description, values in attributes.items():
            key = self._key(description)
            names = [name for name, each in keys.items() if each == key]
            if values and not names:
                text = "which response does not name: an attribute would seem to be missing"
                raise Broken(f"the server returned {description}, {text}")
            for name in names:
                selected[name] = selected.get(name, []) + values
        return selected

    def _key(self, description: str) -> tuple[str, frozenset[str]]:
        """Return the type and the options of a description (RFC 4512, section 2.5)."""
        name, *options = description.lower().split(";")
        return self._types.get(name, name), frozenset(options)


def check_names(handle: Any, options: LdapOptions, attributes: Iterable[str]) -> AttributeTypes:
    """Return the types of the server.

    Raises `Broken` where the server has no ``base_dn``, or not the attributes of the filters.
    ``attributes`` are those of expressions; blocks, and raises errors of python-ldap.
    """
    types = AttributeTypes(_definitions(handle, options.base_dn))
    if not types:
        text = "backend %s: the schema cannot be read: unknown attributes would find no user"
        _log.warning(text, options.name)
        return types
    filters = [name for text in options.searches.values() for name in _IN_FILTER.findall(text)]
    for name in (*filters, *attributes):
        base = name.partition(";")[0]
        if base not in types:
            raise Broken(f"the server has no attribute {base}: see the filters and response")
    return types


def _definitions(handle: Any, base_dn: str) -> list[bytes]:
    """Return the definitions of all attributes; none if the schema cannot be read."""
    names = read_entry(handle, base_dn, "subschemaSubentry")["subschemasubentry"]
    if not names:
        return []
    try:
        schema = read_entry(handle, names[0].decode(), "attributeTypes", kind="subschema")
    except ldap.NO_SUCH_OBJECT:
        return []
    return schema["attributetypes"]
