"""``tornado-idv reconcile``: the accounts of an application whose users do not exist."""
