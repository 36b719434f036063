"""python-ldap, imported without what libldap reads from its surroundings.

``ldap.conf``, ``~/.ldaprc`` and ``LDAP*`` variables could change trusted certificates, limits and
the treatment of aliases; libldap reads them when it is loaded, unless ``LDAPNOINIT`` is set.
"""

from __future__ import annotations

import os

os.environ["LDAPNOINIT"] = "1"

import ldap
import ldap.filter
import ldap.ldapobject
import ldap.sasl

__all__ = ["ldap"]
