"""Users that another HTTP service knows: the kind ``upstream``."""

from __future__ import annotations

from collections.abc import Mapping

from idv_upstream.backend import UpstreamBackend
from idv_upstream.options import UpstreamOptions
from tornado_idv import hookimpl

__all__ = ["UpstreamBackend", "UpstreamOptions", "idv_backend_kinds"]


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[UpstreamBackend]]:
    """Offers the kind ``upstream``."""
    return {"upstream": UpstreamBackend}
