"""Feature: comparison of shadows (backends that serve no client) with the backends in use."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "shadow",
    commands={
        "migrate": (
            "tornado_idv.features.shadow.migrate:migrate",
            "Report differences between a shadow and the backends in use.",
        )
    },
    part="tornado_idv.features.shadow.part:ShadowsPart",
    status="tornado_idv.features.shadow.view:status",
    metrics="tornado_idv.features.shadow.view:metrics",
    users_changed="tornado_idv.features.shadow.file:drop_comparisons",
    announce="tornado_idv.features.shadow.part:announce",
)
PREFIX = "shadow "
"""Prefix of the names of shadows in counters and reports. If a shadow becomes a regular
backend, the prefix separates its earlier calls as a shadow from its later calls."""
