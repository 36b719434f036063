"""Requests to an upstream: their options, templates, encoding and URLs."""
