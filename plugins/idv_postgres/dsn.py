"""A connection URI of PostgreSQL, as its hosts are tried one by one.

No error repeats any part of it: it contains a password, and a character in it that is not
percent-encoded makes the parts that follow look like a host or a database.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

_ROLES = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")
_HOST = r"(?:\[[^\]@/?#,]*\]|[^@/?#,:\[\]]*)(?::[0-9]{0,5})?"
_URI = re.compile(
    rf"((?i:postgres(?:ql)?)://(?:[^@/?#\[\]]*@)?)({_HOST}(?:,{_HOST})*)(/[^@?#]*)?((?:\?[^@#]*)?)"
)
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Dsn:
    """A validated URI: ``uris`` has one for each host, in the order of the list.

    ``roles`` are the values for ``target_session_attrs`` that are tried in turn, each with every
    host. ``name`` is what messages call it: its hosts and its database.
    """

    uris: Sequence[str]
    roles: Sequence[str]
    name: str

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Parse a URI; raises `ValueError`."""
        parts = _URI.fullmatch(text)
        try:
            options = urlsplit(text).query
            query = parse_qs(options, strict_parsing=True) if options else {}
        except ValueError:
            parts = None
        if parts is None:
            raise ValueError(
                "not a connection URI; write postgresql://user:password@host:5432/database, and "
                "percent-encode special characters in the password (@ as %40, / as %2F)"
            )
        role = _one_of(_ROLES, query, "target_session_attrs", "any")
        _one_of(_TLS_MODES, query, "sslmode", "prefer")
        start, hosts, path, options = parts.groups("")
        uris = [f"{start}{host}{path}{options}" for host in hosts.split(",")]
        roles = ("standby", "any") if role == "prefer-standby" else (role,)
        return cls(uris, roles, f"postgresql://{hosts}{path}")


def _one_of(allowed: Sequence[str], query: dict[str, list[str]], name: str, default: str) -> str:
    value = query.get(name, [default])[-1]
    if value not in allowed:
        raise ValueError(f"{name} must be one of: {', '.join(allowed)}")
    return value
