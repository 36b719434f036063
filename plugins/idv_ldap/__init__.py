"""The backend kind ``ldap``: users of an LDAP directory."""

from idv_ldap import refusals as refusals  # allocates its shared memory before the first fork
from tornado_idv import Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``ldap``."""
    return Kinds(backends={"ldap": "idv_ldap.backend:LdapBackend"})
