"""Feature: an endpoint for proxies, with requests and responses in header fields only."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "verify",
    options={"server": "tornado_idv.features.verify.options:VerifyOptions"},
    routes="tornado_idv.features.verify.handler:make_routes",
)
