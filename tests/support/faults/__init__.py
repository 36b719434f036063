"""Helpers of the tests in tests/faults."""
