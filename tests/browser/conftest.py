"""One browser for all pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from support.processes.browser import open_browser, prefer


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
