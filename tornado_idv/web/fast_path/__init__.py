"""The fast path: requests of known clients, past the handlers."""
