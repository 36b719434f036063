"""The fast path: requests with a known head, past the handlers."""
