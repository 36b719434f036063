"""Composition: from settings to a service that listens."""
