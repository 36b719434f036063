"""Feature: the status page of the admin listener, with the traffic of the last 15 minutes."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "status_page",
    admin_routes="tornado_idv.features.status_page.handlers:admin_routes",
    announce="tornado_idv.features.status_page.announcement:announce",
)
