"""Settings that a reload cannot change."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from tornado_idv.config.settings import Settings

_APPLIED = {
    "auth",
    "backends",
    "cache",
    "identifiers",
    "limits",
    "logging.health_checks",
    "profile_sites",
    "server.base_path",
    "server.body_timeout",
    "server.docs",
    "server.drain",
    "server.health_path",
    "server.idle_timeout",
    "server.max_body",
    "server.max_connections",
    "server.packet_cache",
    "server.request_timeout",
    "server.trusted_proxies",
    "server.watch_config",
}
"""Settings that a reload applies; any other needs a restart, also one that is added here never."""
_TLS = "server.tls"


def needs_restart(started: Settings, settings: Settings) -> tuple[str, ...]:
    """Return the settings that differ from those at the start and take effect at the next one.

    Another certificate is applied; TLS on or off is not.
    """
    return tuple(_differences(started, settings, ""))


def _differences(old: BaseModel, new: BaseModel, prefix: str) -> Iterator[str]:
    for name in type(new).model_fields:
        path, before, after = prefix + name, getattr(old, name), getattr(new, name)
        if path in _APPLIED or before == after:
            continue
        if path != _TLS and isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _differences(before, after, f"{path}.")
        elif path != _TLS or before is None or after is None:
            yield path
