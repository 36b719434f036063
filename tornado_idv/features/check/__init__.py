"""Commands that check and describe the configuration before a start."""

from tornado_idv.interfaces.feature import Feature

_MODULE = "tornado_idv.features.check.commands"

FEATURE = Feature(
    "check",
    commands={
        "check": (
            f"{_MODULE}:check",
            "Report the problems of config.yaml, or a summary of the service.",
        ),
        "plugins": (f"{_MODULE}:plugins", "List the kinds of backend of the installed plugins."),
        "schema": (f"{_MODULE}:schema", "Print the JSON Schema of config.yaml."),
    },
)
