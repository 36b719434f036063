"""State of a replica: while it is being loaded, it lacks users of the directory."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from idv_ldap.library import ldap, read_entry
from tornado_idv import Unavailable

_SYNC = b"1.3.6.1.4.1.4203.1.9.1.1"
"""The control of RFC 4533, which the overlay ``syncprov`` has."""
_BEING_LOADED = "the server is a replica that is being loaded"


def check_loaded(handle: Any, base_dn: str, *, is_replica: bool | None) -> bool:
    """Return whether the database of ``base_dn`` has a ``contextCSN``.

    OpenLDAP writes that into the suffix of each database that is replicated, and into that of a
    replica at the end of its first refresh. Raises `Unavailable` if there is none although
    ``is_replica`` or, where that is not known, although the server offers replication; and for a
    controller of Active Directory that has not replicated all. Blocks, and raises errors of
    python-ldap.
    """
    root = read_entry(handle, "", "namingContexts", "supportedControl", "isSynchronized")
    if root["issynchronized"] == [b"FALSE"]:
        raise Unavailable(_BEING_LOADED)
    names = [each.decode() for each in root["namingcontexts"]]
    below = [each for each in names if f",{_plain(base_dn)}".endswith(f",{_plain(each)}")]
    suffix = max(below, key=len, default="")
    try:
        entry = read_entry(handle, suffix, "objectClass", "contextCSN")
    except ldap.NO_SUCH_OBJECT:
        entry = defaultdict(list)
    if is_replica is None:
        is_replica = bool(entry["objectclass"]) and _SYNC in root["supportedcontrol"]
    if is_replica and not entry["contextcsn"]:
        text = f"{_BEING_LOADED}: {suffix} has no contextCSN (see require_context_csn)"
        raise Unavailable(text)
    return bool(entry["contextcsn"])


def _plain(name: str) -> str:
    """Return a distinguished name in lower case, without blanks between its parts."""
    return re.sub(r"\s*([,=+])\s*", r"\1", name).lower()
