"""Interpretation of upstream responses: the status, the body and the mapping to a user."""
