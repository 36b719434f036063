"""One browser for all pages."""

from support.fixtures.contract import checker, client, either, tornado_client, wire  # noqa: F401
from support.processes.browser import browser, chromium  # noqa: F401
