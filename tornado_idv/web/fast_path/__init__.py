"""If the fast path recognizes the head of a request, it responds in place of the handlers."""
