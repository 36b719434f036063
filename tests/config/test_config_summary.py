"""What `tornado-idv check` shows of settings that are good."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tornado_idv.config.settings import Settings
from tornado_idv.config.summary import summary
from tornado_idv.config.written import duration, size

Load = Callable[..., Settings]

NOW = datetime(2026, 6, 1, tzinfo=UTC)
GOOD = """\
profile_sites: [https://profiles.example]
backends: [{name: members, kind: table, path: members.db}]
"""


def test_a_short_file_in_summary(load_text: Load) -> None:
    assert summary(load_text(GOOD), NOW) == [
        ("listens on", "http://127.0.0.1:8080"),
        ("profile sites", "https://profiles.example"),
        ("keys", "none: every request will be refused"),
        ("backend 1", 'members (table), timeout 800ms, cached 5m, "not found" cached 30s'),
        ("cache", "up to 100000 found, 20000 not found"),
        ("demo", "no"),
    ]


def test_a_long_file_in_summary(load_text: Load) -> None:
    text = f"""\
profile_sites: [https://profiles.example, https://old.example]
server: {{host: "::1", port: 0, base_path: /identity}}
auth:
  keys:
    - {{id: shop, sha256: {"a" * 64}, expires: 2026-06-01T00:00:01Z}}
    - {{id: past, sha256: {"b" * 64}, expires: 2026-06-01T02:00:00+02:00}}
    - {{id: soon, sha256: {"c" * 64}, not_before: 2026-06-01T00:00:01Z}}
    - {{id: demo, token: plain-token-of-a-partner, not_before: 2026-06-01T00:00:00Z}}
backends:
  - {{name: crm, kind: remote, url: x, timeout: 2s, cache_ttl: 0s, negative_ttl: 1.5s}}
  - {{name: members, kind: table, path: x}}
cache: {{ttl: 90s, negative_ttl: 2h, max_entries: 5, max_negative_entries: 6}}
demo: true
"""
    assert summary(load_text(text), NOW) == [
        ("listens on", "http://[::1]:any free port/identity"),
        ("profile sites", "https://profiles.example, https://old.example"),
        (
            "keys",
            (
                "4: shop, past (expired 2026-06-01 02:00 UTC+02:00), "
                "soon (valid from 2026-06-01 00:00 UTC), demo"
            ),
        ),
        ("backend 1", 'crm (remote), timeout 2s, cached 0s, "not found" cached 1.5s'),
        ("backend 2", 'members (table), timeout 800ms, cached 90s, "not found" cached 2h'),
        ("cache", "up to 5 found, 6 not found"),
        ("demo", "yes: plain tokens may stand in the file"),
    ]


def test_many_keys_do_not_fill_the_screen(load_text: Load) -> None:
    def keys(count: int) -> str:
        entries = "".join(f"  - {{id: k{i}, sha256: {i:064}}}\n" for i in range(count))
        return dict(summary(load_text(f"{GOOD}auth:\n keys:\n{entries}"), NOW))["keys"]

    assert keys(10) == "10: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9"
    assert keys(12) == "12: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, and 2 more"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.001, "1ms"),
        (0.8, "800ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "90s"),
        (300, "5m"),
        (3600, "1h"),
        (5400, "90m"),
        (86400, "1d"),
    ],
)
def test_a_duration_is_written_with_one_unit(seconds: float, written: str) -> None:
    assert duration(seconds) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [(1, "1B"), (1000, "1000B"), (16384, "16KiB"), (1024**2, "1MiB"), (3 * 1024**3, "3GiB")],
)
def test_a_size_is_written_with_one_unit(count: int, written: str) -> None:
    assert size(count) == written
