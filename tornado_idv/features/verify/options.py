"""The setting that enables lookups for proxies."""

from typing import Annotated

from tornado_idv.options import APPLIED, Options


class VerifyOptions(Options):
    """The settings of the feature `verify` in the section ``server``."""

    verify: Annotated[bool, APPLIED] = False
    """Whether to serve ``/api/v1/verify``: lookups for proxies, with header fields only."""
