"""An HTTP/1.1 server for any `tornado.web.Application` whose responses fit into memory.

It knows nothing of keys, users, JSON or log formats: responses to requests that are rejected
before the application sees them, and those of the fast path, come from what it is given. Framing
that two readers could understand differently is rejected (RFC 9112, section 11.2).
"""
