"""Feature: commands that import, export, count and compare all users of a backend."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "users",
    commands={
        "users": (
            "tornado_idv.features.users.commands:users",
            "Import, export, count and compare the users of backends.",
        )
    },
)
