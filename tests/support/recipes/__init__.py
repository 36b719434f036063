"""Helpers of the tests in tests/recipes."""
