"""Composition: from settings to a listening service."""
