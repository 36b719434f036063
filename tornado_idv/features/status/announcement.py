"""A line of output with the URL of the status page, at the start of the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tornado_idv.service.service import ServiceInfo


def announce(_settings: object, service: ServiceInfo) -> Iterator[str]:
    """Yield a line with the URL of the status page, or none without an admin listener."""
    if service.admin_url is not None:
        yield f"Status page: {service.admin_url}/status"
