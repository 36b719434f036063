"""Debian's Chromium without a window, driven by Selenium; `make test-tools` installs it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from support.processes.process import eventually
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


def looks(driver: Chrome, wide: int, narrow: int) -> Iterator[str]:
    """Show the page wide and light, then narrow and dark; yield the scheme of each.

    Loads what `violations` runs; skips the test where that is not installed.
    """
    if not _AXE.exists():
        pytest.skip(not_installed("axe-core"))
    driver.execute_script(_AXE.read_text(encoding="utf-8"))
    measure = "return document.documentElement.scrollWidth"
    for scheme, width in (("light", wide), ("dark", narrow)):
        prefer(driver, scheme)
        resize(driver, width, 900)
        # The page lays itself out again after it was resized.
        eventually(lambda width=width: driver.execute_script(measure) <= width)
        yield scheme


def violations(driver: Chrome, *impacts: str) -> list[tuple[str, list[str]]]:
    """Return the rules of axe, which is loaded, that the page breaks; of any impact by default."""
    run = "axe.run({resultTypes: ['violations']}).then(arguments[0])"
    found = driver.execute_async_script(run)["violations"]
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found
        if not impacts or each["impact"] in impacts
    ]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """The process, whose start takes two seconds of CPU time."""
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """The browser as it was at its start, but for what is stored for each address."""
    prefer(chromium, "light")
    chromium.delete_all_cookies()
    chromium.get_log("browser")
    yield chromium
    chromium.get("about:blank")
