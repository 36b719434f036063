"""Tests by fault injection. They compare each response with the true state of the users."""
