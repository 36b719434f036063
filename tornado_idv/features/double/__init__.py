"""Feature: a test double of the service, and a command to test programs against outages."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "double",
    commands={
        "drill": (
            "tornado_idv.features.double.drill:drill",
            "Check that a program survives an outage of this service.",
        )
    },
    routes="tornado_idv.features.double.handlers:make_routes",
    part="tornado_idv.features.double.state:make_part",
    admin_routes="tornado_idv.features.double.admin:admin_routes",
)
