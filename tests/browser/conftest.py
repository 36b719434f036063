"""One browser for all pages."""

from support.processes.browser import browser, chromium  # noqa: F401
