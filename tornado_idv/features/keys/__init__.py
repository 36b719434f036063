"""Feature: commands that create a key store, and administer its keys."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "keys",
    commands={
        "init": (
            "tornado_idv.features.keys.init:init",
            "Write a starter configuration and a key into FOLDER.",
        ),
        "keys": (
            "tornado_idv.features.keys.commands:keys",
            "Issue, rotate and revoke the keys in the key store.",
        ),
    },
)
