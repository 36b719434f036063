"""The fast path: requests of clients that were seen before, past the handlers."""
