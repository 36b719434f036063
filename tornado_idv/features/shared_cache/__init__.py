"""Feature: a cache of answers shared by several processes and services."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "shared_cache",
    part="tornado_idv.features.shared_cache.part:make_part",
    status="tornado_idv.features.shared_cache.view:status",
    metrics="tornado_idv.features.shared_cache.view:metrics",
)
