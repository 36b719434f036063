"""Feature: a command that looks a user up without the service and its cache."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "lookup",
    commands={
        "lookup": (
            "tornado_idv.features.lookup.command:lookup",
            "Look a user up in the configured backends.",
        )
    },
)
