"""The fast path serves requests with a known head without the handlers."""
