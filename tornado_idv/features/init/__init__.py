"""A starter configuration."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "init",
    commands={
        "init": (
            "tornado_idv.features.init.command:init",
            "Write a starter configuration and a key into FOLDER.",
        )
    },
)
