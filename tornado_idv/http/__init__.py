"""An HTTP/1.1 server for a `tornado.web.Application`. Responses must fit into memory.

The server does not depend on keys, users, JSON or log formats. Its caller passes two functions: one
serves known requests (the fast path), and one renders the responses to rejected requests. Requests
with ambiguous framing are rejected (RFC 9112, section 11.2).
"""
