"""A connection URI of PostgreSQL, as its hosts are tried one by one.

No error repeats any part of it: it contains a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit

_ROLES = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")
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
        try:
            parts = urlsplit(text)
            query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        except ValueError:
            parts, query = SplitResult("", "", "", "", ""), {}
        if parts.scheme not in {"postgres", "postgresql"} or parts.fragment:
            raise ValueError(
                "not a connection URI; write postgresql://user:password@host:5432/database, and "
                "percent-encode special characters in the password"
            )
        role = _one_of(_ROLES, query, "target_session_attrs", "any")
        _one_of(_TLS_MODES, query, "sslmode", "prefer")
        # asyncpg ends the user info at the first @, too.
        user, at, hosts = parts.netloc.rpartition("@")
        if "@" in user:
            raise ValueError("an @ in the user name or password must be written %40")
        uris = [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
        roles = ("standby", "any") if role == "prefer-standby" else (role,)
        return cls(uris, roles, f"postgresql://{hosts}{parts.path}")


def _one_of(allowed: Sequence[str], query: dict[str, list[str]], name: str, default: str) -> str:
    value = query.get(name, [default])[-1]
    if value not in allowed:
        raise ValueError(f"{name} must be one of: {', '.join(allowed)}")
    return value
