"""Export and import of the keys of a key store."""

from tornado_idv.interfaces.feature import Feature

_MODULE = "tornado_idv.features.keys_transfer.transfer"

FEATURE = Feature(
    "keys_transfer", key_commands=(f"{_MODULE}:export_keys", f"{_MODULE}:import_keys")
)
