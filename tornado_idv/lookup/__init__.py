"""Lookups: the cache, then the configured backends in order, each behind its guard."""
