"""The schema of a server, and the state of a replica.

A filter with an unknown attribute finds no entry, in OpenLDAP without an error (RFC 4511, section
4.5.1.7, "Undefined"). Then every user would be "not found". A server may also return an attribute
under another name, such as ``title;lang-en`` for ``title``.
"""

import logging
import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any

from idv_ldap.errors import ldap
from idv_ldap.options import EXACT, LdapOptions
from tornado_idv import Broken, Unavailable

_log = logging.getLogger(__name__)
_TYPE = re.compile(r"\(\s*(\S+)(?:\s+NAME\s+('[^']*'|\([^)]*\)))?")
"""Pattern for the OID and the names in an attribute type definition (RFC 4512, section 4.1.2)."""
_NAME = re.compile(r"'([^']*)'")
_RULE = re.compile(r"'[^']*'|\b(EQUALITY|SUP)\s+([^\s)]+)")
"""Pattern for the equality rule and the supertype in a definition, and for its quoted texts."""
_SYNC = b"1.3.6.1.4.1.4203.1.9.1.1"
"""The OID of the sync control (RFC 4533). OpenLDAP servers with ``syncprov`` support it."""
_BEING_LOADED = "the server is a replica that is being loaded"

Attributes = dict[str, list[bytes]]
Types = dict[str, str]
"""The OIDs of attribute types. Keys are the names in lower case, and the OIDs themselves."""


def parse_types(definitions: Iterable[bytes]) -> tuple[Types, dict[str, dict[str, str]]]:
    """Return the attribute types of a schema. By OID, also return each ``EQUALITY`` and ``SUP``."""
    types: Types = {}
    rules: dict[str, dict[str, str]] = {}
    for definition in definitions:
        if found := _TYPE.match(definition.decode(errors="replace")):
            names = (found[1], *_NAME.findall(found[2] or ""))
            types |= {name.lower(): found[1] for name in names}
            rules[found[1]] = dict(_RULE.findall(found.string))
    return types, rules


def select(types: Types, attributes: Attributes, requested: Iterable[str]) -> Attributes:
    """Return the attributes by their requested names, even if the server returns synonyms.

    Raises `Broken` for a subtype or an option of a requested attribute, such as ``title;lang-en``.
    If this value were ignored, ``title`` would seem to be missing.
    """

    def key(description: str) -> tuple[str, frozenset[str]]:
        """Return the type and options of an attribute description (RFC 4512, section 2.5)."""
        name, *options = description.lower().split(";")
        return types.get(name, name), frozenset(options)

    keys = {name: key(name) for name in requested}
    selected: Attributes = {}
    for description, values in attributes.items():
        names = [name for name, each in keys.items() if each == key(description)]
        if values and not names:
            text = "but no expression in response uses this name: the value would be ignored"
            raise Broken(f"the server returned {description}, {text}")
        for name in names:
            selected[name] = selected.get(name, []) + values
    return selected


def read_types(handle: Any, options: LdapOptions, names: Iterable[str]) -> Types:
    """Return the attribute types of the server, or none if its schema is unreadable.

    This function blocks. Raises `Broken` for a name in ``names`` without a type, and for a
    case-sensitive attribute to compare with folded nicknames. Also raises errors of python-ldap,
    for example for a missing ``base_dn``.
    """
    places = _read(handle, options.base_dn, "subschemaSubentry", is_required=True)
    definitions: list[bytes] = []
    for place in places["subschemasubentry"]:
        schema = _read(handle, place.decode(), "attributeTypes", kind="subschema")
        definitions += schema["attributetypes"]
    types, rules = parse_types(definitions)
    if not types:
        text = "backend %s: the schema cannot be read: unknown attributes are not detected"
        if options.folded:
            text += "; with nickname_case fold, by_nickname needs attributes that ignore case"
        _log.warning(text, options.name)
    for name, rule in options.folded:
        own = rules.get(types.get(name.lower(), ""), {})
        for _ in rules:  # not `while`: a cycle in the schema has no end
            if "EQUALITY" not in own and "SUP" in own:
                own = rules.get(types.get(own["SUP"].lower(), ""), {})
        if EXACT.fullmatch(rule or own.get("EQUALITY", "")):
            text = f"nickname_case is fold, and {name} is compared by {own['EQUALITY']}"
            raise Broken(f"{text}: write ({name}:caseIgnoreMatch:={{nickname}}) in by_nickname")
    for name in names if types else ():
        base = name.partition(";")[0]
        if base.lower() not in types:
            raise Broken(f"the server has no attribute {base}: see the filters and response")
    return types


def check_loaded(handle: Any, base_dn: str, *, is_replica: bool | None) -> bool:
    """Return whether the database of ``base_dn`` has a ``contextCSN``. This function blocks.

    Raises `Unavailable` for a replica without a ``contextCSN``, because OpenLDAP writes this
    attribute into the suffix at the end of the first refresh. If ``is_replica`` is ``None``, a
    server that offers replication counts as a replica. Also raises `Unavailable` for an
    unsynchronized controller of Active Directory, and errors of python-ldap.
    """
    root = _read(handle, "", "namingContexts", "supportedControl", "isSynchronized")
    if root["issynchronized"] == [b"FALSE"]:
        raise Unavailable(_BEING_LOADED)
    names = [each.decode() for each in root["namingcontexts"]]
    below = [each for each in names if f",{_plain(base_dn)}".endswith(f",{_plain(each)}")]
    suffix = max(below, key=len, default="")
    entry = _read(handle, suffix, "objectClass", "contextCSN")
    if is_replica is None:
        is_readable = bool(suffix and entry["objectclass"])
        is_replica = is_readable and _SYNC in root["supportedcontrol"]
    if is_replica and not entry["contextcsn"]:
        raise Unavailable(f"{_BEING_LOADED}: {suffix} has no contextCSN (see require_context_csn)")
    return bool(entry["contextcsn"])


def identify(handle: Any) -> str:
    """Return the name of a controller of Active Directory, or the address of any other server.

    This function blocks. Raises errors of python-ldap and `OSError`.
    """
    with socket.socket(fileno=os.dup(handle.fileno())) as sock:
        address = repr(sock.getpeername())
    names = _read(handle, "", "dsServiceName")["dsservicename"]
    return names[0].decode() if names else address


def _read(
    handle: Any, name: str, *attributes: str, kind: str = "*", is_required: bool = False
) -> defaultdict[str, list[bytes]]:
    """Return attributes of an entry by name in lower case, since servers differ in the case."""
    entry: defaultdict[str, list[bytes]] = defaultdict(list)
    with nullcontext() if is_required else suppress(ldap.NO_SUCH_OBJECT):
        filter_ = f"(objectClass={kind})"
        for dn, values in handle.search_s(name, ldap.SCOPE_BASE, filter_, attributes):
            if dn is not None:
                entry.update({key.lower(): each for key, each in values.items()})
    return entry


def _plain(name: str) -> str:
    """Return a distinguished name in lower case, without blanks around its separators."""
    return re.sub(r"\s*([,=+])\s*", r"\1", name).lower()
