"""Commands for the running service."""

from tornado_idv.interfaces.feature import Feature

_MODULE = "tornado_idv.features.admin_commands.commands"

FEATURE = Feature(
    "admin_commands",
    commands={
        "cache": (f"{_MODULE}:cache", "Show or purge the cache of the running service."),
        "explain": (f"{_MODULE}:explain", "Look a user up in each backend of the running service."),
        "health": (f"{_MODULE}:health", "Report whether the running service is ready."),
        "reload": (f"{_MODULE}:reload", "Reload the configuration of the running service."),
    },
)
