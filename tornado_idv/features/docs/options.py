"""The setting of the page that describes the API."""

from __future__ import annotations

from typing import Annotated

from tornado_idv.options import APPLIED, Options


class DocsOptions(Options):
    """Settings of this feature in the section ``server``."""

    docs: Annotated[bool, APPLIED] = False
    """Whether ``GET /docs`` and ``/openapi.json``, below ``base_path``, describe the API."""
