"""One browser for all pages."""

from support.fixtures.browser import browser, chromium  # noqa: F401
