"""Requests to an upstream: templates, their encoding and URLs."""
