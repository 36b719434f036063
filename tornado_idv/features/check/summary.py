"""The summary of a configuration: the most important settings, on one screen."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from pydantic import SecretStr

from tornado_idv.config.address import Address
from tornado_idv.config.settings import AuthSettings, KeySettings, LimitSettings, Settings
from tornado_idv.interfaces.backend import BackendOptions, ShadowOptions
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.registry import load_class
from tornado_idv.units import format_duration, format_rate

_MAX_KEYS = 10


def summary(settings: Settings, now: datetime, kinds: Kinds) -> list[tuple[str, str]]:
    """Return the label and text of each line. Keys that are not valid at ``now`` are marked."""
    server, admin, store = settings.server, settings.admin, settings.auth.store
    cache, shared = settings.cache, settings.shared_cache
    listens = ", ".join(
        str(each) if each.path else f"{server.scheme}://{each}{server.base_path}"
        for each in server.addresses
    )
    shared_text = f"{shared.kind}, timeout {format_duration(shared.timeout)}" if shared else ""
    store_text = str(store or "")
    if isinstance(store, SecretStr):
        store_text = f"{store.get_secret_value().partition('://')[0]}://…"
    unguarded = ", ".join(
        each.name
        for each in settings.backends
        if load_class(kinds.backends[each.kind]).can_lose_users and not each.canaries
    )
    lines = [
        ("listens on", listens),
        ("admin listener", f"http://{Address(admin.host, admin.port)}" if admin else ""),
        ("profile sites", ", ".join(settings.profile_sites)),
        ("keys", _keys(settings.auth, now)),
        ("key store", store_text),
        ("limits", ", ".join(_limits(settings.limits, settings.auth.keys))),
        *((f"backend {i}", _backend(each, cache)) for i, each in enumerate(settings.served, 1)),
        *(("shadow", _shadow(each, each.shadow)) for each in settings.backends if each.shadow),
        ("cache", f"up to {cache.max_entries} found, {cache.max_negative_entries} not found"),
        ("shared cache", shared_text),
        ("demo", "yes: auth.keys may contain tokens in plain text" if settings.demo else ""),
        ("recommended", f"a canary (a user who must exist) for {unguarded}" if unguarded else ""),
    ]
    return [(label, text) for label, text in lines if text]


def _keys(auth: AuthSettings, now: datetime) -> str:
    keys = auth.keys
    if not keys:
        return "none in this file" if auth.store else "none: every request will be rejected"
    shown = [_key(key, now) for key in keys[:_MAX_KEYS]]
    if len(keys) > _MAX_KEYS:
        shown.append(f"and {len(keys) - _MAX_KEYS} more")
    return f"{len(keys)}: {', '.join(shown)}"


def _key(key: KeySettings, now: datetime) -> str:
    if key.expires is not None and key.expires <= now:
        return f"{key.id} (expired {key.expires:%Y-%m-%d %H:%M %Z})"
    if key.not_before is not None and key.not_before > now:
        return f"{key.id} (valid from {key.not_before:%Y-%m-%d %H:%M %Z})"
    return key.id


def _limits(limits: LimitSettings, keys: Sequence[KeySettings]) -> Iterator[str]:
    if limits.requests:
        yield f"requests {format_rate(limits.requests)}"
    if limits.misses:
        log_only = " (log only)" if limits.misses.log_only else ""
        yield f"misses {format_rate(limits.misses.rate)}{log_only}"
    if limits.failed_auth:
        yield f"failed_auth {format_rate(limits.failed_auth)}"
    own = sum(key.limits.requests is not None or key.limits.misses is not None for key in keys)
    if own:
        yield f"keys with their own limits: {own}"


def _shadow(options: BackendOptions, shadow: ShadowOptions) -> str:
    hits = ", also of cached answers" if shadow.hits else ""
    compared = f"compared with {shadow.sample} of lookups{hits}"
    most = f"at most {format_rate(shadow.rate)} in each process"
    return f"{options.name} ({options.kind}), {compared}, {most}"


def _backend(options: BackendOptions, cache: CacheLimits) -> str:
    found = cache.ttl if options.cache_ttl is None else options.cache_ttl
    missed = cache.negative_ttl if options.negative_ttl is None else options.negative_ttl
    times = f"timeout {format_duration(options.timeout)}, cached {format_duration(found)}"
    return f'{options.name} ({options.kind}), {times}, "not found" cached {format_duration(missed)}'
