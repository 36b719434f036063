"""What `tornado-idv check` shows of settings that are good."""

from datetime import UTC, datetime

from support.fixtures.configs import GOOD, Load
from tornado_idv.features.check.summary import summary
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.interfaces.shared import SharedCacheOptions

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def test_summary_of_a_minimal_file(load_text: Load, kinds: Kinds) -> None:
    assert summary(load_text(GOOD), NOW, kinds) == [
        ("listens on", "http://127.0.0.1:8080"),
        ("profile sites", "https://profiles.example"),
        ("keys", "none: every request will be rejected"),
        ("backend 1", 'members (table), timeout 800ms, cached 5m, "not found" cached 30s'),
        ("cache", "up to 100000 found, 20000 not found"),
    ]


def test_summary_of_a_large_file(load_text: Load, kinds: Kinds) -> None:
    text = f"""\
profile_sites: [https://profiles.example, https://old.example]
server: {{host: "::1", port: 0, base_path: /identity, tls: {{cert_file: c, key_file: k}}}}
auth:
  keys:
    - {{id: shop, sha256: {"a" * 64}, expires: 2026-06-01T00:00:01Z, limits: {{requests: 9/s}}}}
    - {{id: past, sha256: {"b" * 64}, expires: 2026-06-01T02:00:00+02:00}}
    - id: soon
      sha256: {"c" * 64}
      not_before: 2026-06-01T00:00:01Z
      limits: {{misses: 5/hour}}
    - {{id: demo, token: plain-token-of-a-partner, not_before: 2026-06-01T00:00:00Z}}
backends:
  - {{name: crm, kind: remote, url: x, timeout: 2s, cache_ttl: 0s, negative_ttl: 1.5s}}
  - {{name: members, kind: table, path: x}}
cache: {{ttl: 90s, negative_ttl: 2h, max_entries: 5, max_negative_entries: 6}}
limits:
  requests: 100/second
  misses: {{rate: 300/10 minutes, log_only: true}}
  failed_auth: 60/minute
demo: true
admin: {{port: 9}}
"""
    past, soon = "expired 2026-06-01 02:00 UTC+02:00", "valid from 2026-06-01 00:00 UTC"
    limits = "requests 100/second, misses 300/10 minutes (log only), failed_auth 60/minute"
    assert summary(load_text(text), NOW, kinds) == [
        ("listens on", "https://[::1]:any free port/identity"),
        ("admin listener", "http://127.0.0.1:9"),
        ("profile sites", "https://profiles.example, https://old.example"),
        ("keys", f"4: shop, past ({past}), soon ({soon}), demo"),
        ("limits", f"{limits}, keys with their own limits: 2"),
        ("backend 1", 'crm (remote), timeout 2s, cached 0s, "not found" cached 1.5s'),
        ("backend 2", 'members (table), timeout 800ms, cached 90s, "not found" cached 2h'),
        ("cache", "up to 5 found, 6 not found"),
        ("demo", "yes: auth.keys may contain tokens in plain text"),
    ]


def test_summary_of_a_shadow_and_a_shared_cache(load_text: Load, kinds: Kinds) -> None:
    shadow = "{name: new, kind: table, path: b, shadow: {sample: 2.5%, hits: true}}"
    shared = {"shared_cache": SharedCacheOptions(kind="redis")}
    backends = f"[{shadow}, {shadow.replace(', hits: true', '').replace('new', 'other')}, {{"
    more = "server: {listen: ['unix:/run/s']}\nauth: {store: 'postgresql://u:secret@db/keys'}\n"
    settings = load_text(GOOD.replace("[{", backends) + more).model_copy(update=shared)
    rows = summary(settings, NOW, kinds)
    text = "new (table), compared with 2.5% of lookups, also of cached answers, at most 10/second"
    other = text.replace("new", "other").replace(", also of cached answers", "")
    shown = {("shadow", f"{each} in each process") for each in (text, other)}
    shown |= {("listens on", "unix:/run/s"), ("keys", "none in this file")}
    assert shown | {("key store", "postgresql://…"), ("shared cache", "redis, timeout 20ms")} <= {
        *rows
    }
    assert [label for label, _ in rows if label.startswith("backend")] == ["backend 1"]


def test_at_most_ten_keys_are_listed(load_text: Load, kinds: Kinds) -> None:
    def keys(count: int) -> str:
        entries = "".join(f"  - {{id: k{i}, sha256: {i:064}}}\n" for i in range(count))
        return dict(summary(load_text(f"{GOOD}auth:\n keys:\n{entries}"), NOW, kinds))["keys"]

    assert keys(10) == "10: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9"
    assert keys(12) == "12: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, and 2 more"
