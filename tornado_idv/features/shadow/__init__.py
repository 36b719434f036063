"""Shadows: backends under comparison. The service never answers from a shadow."""

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
"""Prefix of shadows in counters and reports.

A backend can be a shadow before or after it is a source. The prefix keeps the two counts apart.
"""
