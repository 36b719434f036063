"""Interpretation of an upstream response: its status, its body and the mapping to a user."""
