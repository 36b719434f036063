"""Feature: the OpenAPI document of the API, and a page that shows it."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "docs",
    commands={
        "openapi": (
            "tornado_idv.features.docs.openapi:openapi",
            "Print the OpenAPI document of the API with this configuration.",
        )
    },
    options={"server": "tornado_idv.features.docs.options:DocsOptions"},
    routes="tornado_idv.features.docs.page:make_routes",
    announce="tornado_idv.features.docs.page:announce",
)
