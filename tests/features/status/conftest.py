"""A service with an admin listener on loopback."""

from support.fixtures.admin import service, used  # noqa: F401
from support.processes.browser import browser, chromium  # noqa: F401
