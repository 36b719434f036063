"""Shadows: backends that never answer, and are compared with those that do."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "shadow",
    commands={
        "migrate": (
            "tornado_idv.features.shadow.migrate:migrate",
            "Report whether a shadow has the same users as the source.",
        )
    },
)
