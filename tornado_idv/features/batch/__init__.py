"""Lookups of many users in one request."""
