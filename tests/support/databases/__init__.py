"""Databases and what is stored in them."""
