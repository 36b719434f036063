"""Feature: notifications for systemd."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature("systemd", events="tornado_idv.features.systemd.notify:Notifier")
