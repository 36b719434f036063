"""Feature: the command ``reconcile``. It finds accounts whose users do not exist."""

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
