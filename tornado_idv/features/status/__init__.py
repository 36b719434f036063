"""Feature: the state of the service for operators: the status page, its data, and a command."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "status",
    commands={
        "status": (
            "tornado_idv.features.status.command:status",
            "Show the state of the running service.",
        )
    },
    admin_routes="tornado_idv.features.status.handlers:admin_routes",
    announce="tornado_idv.features.status.handlers:announce",
)
