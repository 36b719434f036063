"""Fault injection: each response is compared with the true state of the users."""
