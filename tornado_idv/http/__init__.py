"""An HTTP/1.1 server for any `tornado.web.Application` with responses that fit into memory.

It knows nothing of keys, users, JSON or log formats. Its caller provides the fast path, and the
responses to requests rejected before the application. Ambiguous framing is rejected (RFC 9112,
section 11.2).
"""
