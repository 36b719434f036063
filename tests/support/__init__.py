"""Helpers of the tests; no test imports another test."""
