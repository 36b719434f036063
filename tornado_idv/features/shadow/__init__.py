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
    part="tornado_idv.features.shadow.part:ShadowsPart",
    status="tornado_idv.features.shadow.view:status",
    metrics="tornado_idv.features.shadow.view:metrics",
    users_changed="tornado_idv.features.shadow.file:drop_comparisons",
)
PREFIX = "shadow "
"""How names of shadows begin in counters and reports: they may answer later, or did before."""
