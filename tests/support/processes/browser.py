"""Debian's Chromium without a window, driven by Selenium; `make test-tools` installs it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from support.processes.proxies import not_installed

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason=not_installed("chromium with its driver")
)
_AXE = Path(__file__).parents[2] / "browser" / "node_modules" / "axe-core" / "axe.min.js"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
)


@contextmanager
def open_browser(profile: Path) -> Iterator[Chrome]:
    """Yield a browser with an empty profile, whose console is recorded; end it."""
    assert CHROMIUM is not None
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(DRIVER))
    try:
        driver.set_page_load_timeout(20)
        yield driver
    finally:
        driver.quit()


def resize(driver: Chrome, width: int, height: int) -> None:
    """Set the size of the viewport in CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: Chrome, scheme: str) -> None:
    """Set the preferred color scheme, ``light`` or ``dark``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    """Ask again and again until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_narrow(driver: Chrome, width: int) -> None:
    """Wait until the page, which lays itself out again after it was resized, fits the width."""
    measure = "return document.documentElement.scrollWidth"
    wait_for(lambda: driver.execute_script(measure) <= width)


def load_axe(driver: Chrome) -> None:
    """Load what `violations` runs into the page; skips the test where it is not installed."""
    if not _AXE.exists():
        pytest.skip(not_installed("axe-core"))
    driver.execute_script(_AXE.read_text(encoding="utf-8"))


def violations(driver: Chrome, *impacts: str) -> list[tuple[str, list[str]]]:
    """Return the rules of axe, which is loaded, that the page breaks; of any impact by default."""
    run = "axe.run({resultTypes: ['violations']}).then(arguments[0])"
    found = driver.execute_async_script(run)["violations"]
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found
        if not impacts or each["impact"] in impacts
    ]
