"""Lookups of many users in one request."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature("batch", routes="tornado_idv.features.batch.handler:make_routes")
