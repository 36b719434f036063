"""The setting that enables the documentation of the API."""

from typing import Annotated

from tornado_idv.options import APPLIED, Options


class DocsOptions(Options):
    """The settings of the feature `docs` in the section ``server``."""

    docs: Annotated[bool, APPLIED] = False
    """Whether to serve ``/docs`` and ``/openapi.json``, the documentation of the API."""
