"""Administration of the keys in the key store."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "keys",
    commands={
        "keys": (
            "tornado_idv.features.keys.commands:keys",
            "Issue, rotate and revoke the keys in the key store.",
        )
    },
)
