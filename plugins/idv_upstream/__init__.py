"""The backend kind ``upstream``: lookups in another HTTP service."""

from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``upstream``."""
    return Kinds(backends={"upstream": "idv_upstream.backend:UpstreamBackend"})
