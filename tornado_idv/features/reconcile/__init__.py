"""Feature: reconciliation, a command that finds accounts without an existing user."""

from tornado_idv.interfaces.feature import Feature

FEATURE = Feature(
    "reconcile",
    commands={
        "reconcile": (
            "tornado_idv.features.reconcile.command:reconcile",
            "List accounts whose users do not exist.",
        )
    },
)
