"""Writes the screenshots of the status page in docs/images/; run by ``make screenshots``.

The page is the real one; its figures are made up here, so that every run gives the same picture.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path

from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from support.processes.admin import WITH_ADMIN
from support.processes.browser import open_browser, prefer, resize
from support.processes.service import FIXTURE, serving
from tornado_idv.log_format import format_time

FOLDER = Path(__file__).parent / "images"
PICTURES = [
    ("status-light.png", "light", 1040, 1506),
    ("status-dark.png", "dark", 1040, 1506),
    ("status-phone.png", "light", 390, 844),
]
_SAMPLES = 900
_DAY = 86400.0
_OUTAGE, _BURST = range(481, _SAMPLES), range(201, 260)
"""Seconds in which a backend is unavailable, and those in which clients are limited."""
_STUB = """\
const records = %s;
window.fetch = async (path) => new Response(JSON.stringify(records[path]), {status: 200});
"""


def main() -> None:
    now = time.time()
    records = {
        "status.json": _status(now),
        "status/history.json": {"samples": _samples(now)},
        "explain": _EXPLANATION,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "users.yaml").write_text(FIXTURE, encoding="utf-8")
        with (
            serving(WITH_ADMIN, Path(folder)) as service,
            open_browser(Path(folder) / "profile") as driver,
        ):
            stub = {"source": _STUB % json.dumps(records)}
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", stub)
            for name, scheme, width, height in PICTURES:
                prefer(driver, scheme)
                resize(driver, width, height)
                driver.get(f"{service.admin_url}/status")
                driver.find_element(By.ID, "input")
                wait = WebDriverWait(driver, 10)
                wait.until(lambda each: each.find_element(By.ID, "input").is_displayed())
                driver.find_element(By.ID, "input").send_keys("@alice")
                driver.find_element(By.CSS_SELECTOR, "#explain-form button").click()
                wait.until(lambda each: each.find_elements(By.CSS_SELECTOR, "#explanation li"))
                driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
                time.sleep(0.5)  # the charts adapt to the width
                driver.save_screenshot(str(FOLDER / name))
                sys.stdout.write(f"docs/images/{name}: {(FOLDER / name).stat().st_size} bytes\n")


def _samples(now: float) -> dict[str, list[float]]:
    """Return 15 minutes of steady traffic, with an outage of a backend in the last seven."""
    columns: dict[str, list[float]] = {"time": [round(now - _SAMPLES + i) for i in range(_SAMPLES)]}
    noise = [
        math.sin(i * 0.11) + math.sin(i * 0.071) * math.cos(i * 0.017) for i in range(_SAMPLES)
    ]
    outage = [1 if i in _OUTAGE else 0 for i in range(_SAMPLES)]
    columns["requests"] = [round(1240 + 70 * each, 1) for each in noise]
    columns["errors"] = [each * (34 + 8 * n) for each, n in zip(outage, noise, strict=True)]
    columns["status_401"] = [6 + 2 * n for n in noise]
    columns["status_403"] = [0.2 for _ in noise]
    columns["status_404"] = [62 + 4 * n for n in noise]
    columns["status_429"] = [18.0 if i in _BURST else 0.0 for i in range(_SAMPLES)]
    columns["stale"] = [each * (96 + 9 * n) for each, n in zip(outage, noise, strict=True)]
    columns["p50"] = [round(0.09 + 0.006 * n, 3) for n in noise]
    for field, steady, variation, change in [
        ("p95", 4.1, 0.4, 5),
        ("p99", 11, 1.3, 21),
        ("hit_ratio", 0.94, 0.009, -0.11),
    ]:
        columns[field] = [
            round(steady + variation * n + change * each, 4)
            for each, n in zip(outage, noise, strict=True)
        ]
    return columns


def _status(now: float) -> dict[str, object]:
    failed = "connection failed"
    return {
        "status": "degraded",
        "degraded": ["backend partners"],
        "version": "1.0.0rc1",
        "pid": 4711,
        "started_at": format_time(now - 3.3 * _DAY),
        "uptime_s": 3.3 * _DAY,
        "recent": {name: column[-1] for name, column in _samples(now).items()},
        "requests": {"url": {"ok": 301_482_204, "not_found": 9_114_091}},
        "backends": [
            _backend("members", "sqlite", {"found": 8_112_904, "not_found": 2_204_117}, 0.41, 1.9),
            _backend("crm", "upstream", {"found": 1_910_033, "not_found": 290_118}, 8.2, 31),
            {
                **_backend("partners", "upstream", {"not_found": 290_001, "unavailable": 117}),
                "available": False,
                "breaker": "open",
                "next_probe_s": 11.4,
                "failing_since": format_time(now - 421),
                "last_error": failed,
                "last_error_at": format_time(now - 3),
            },
        ],
        "cache": {"entries": {"found": 84_310, "negative": 6_021}, "evictions": 0},
        "connections": {"idle": 118, "reading": 2, "responding": 4},
        "keys": {
            "count": 12,
            "expiring": [
                {"id": "web-shop", "expires": format_time(now + 2.4 * _DAY)},
                {"id": "batch", "expires": format_time(now + 9.1 * _DAY)},
            ],
        },
        "key_store": None,
        "log_dropped": 0,
    }


def _backend(
    name: str,
    kind: str,
    calls: dict[str, int],
    p50: float | None = None,
    p99: float | None = None,
) -> dict[str, object]:
    return {
        "name": name,
        "kind": kind,
        "available": True,
        "breaker": "closed",
        "failing_since": None,
        "last_error": None,
        "last_error_at": None,
        "calls": calls,
        "latency_ms": {"p50": p50, "p99": p99},
    }


_EXPLANATION = {
    "result": "found",
    "cache": "found",
    "backends": [
        {"backend": "members", "outcome": "not known here", "ms": 0.38},
        {"backend": "crm", "outcome": "found", "ms": 7.91},
    ],
}

if __name__ == "__main__":
    main()
