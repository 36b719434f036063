"""Lookups for proxies, in header fields alone."""
