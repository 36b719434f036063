"""Helpers of the tests in tests/model."""
