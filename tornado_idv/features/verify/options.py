"""The setting of lookups for proxies."""

from __future__ import annotations

from typing import Annotated

from tornado_idv.options import APPLIED, Options


class VerifyOptions(Options):
    """Settings of this feature in the section ``server``."""

    verify: Annotated[bool, APPLIED] = False
    """Whether ``GET /api/v1/verify`` looks users up for proxies, in header fields alone."""
