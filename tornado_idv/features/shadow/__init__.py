"""Feature: shadows. A shadow serves no client. It is compared with the backends in use."""

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
"""Prefix of the names of shadows in counters and reports.

A backend may be a shadow first and a source later. The prefix separates the two counts.
"""
