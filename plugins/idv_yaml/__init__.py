"""The backend kind ``yaml``: users from a YAML file, the *fixture*, with automatic reload."""

from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``yaml``."""
    return Kinds(backends={"yaml": "idv_yaml.backend:YamlBackend"})
