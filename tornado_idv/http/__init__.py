"""An HTTP/1.1 server for a `tornado.web.Application`. Responses must fit into memory.

The caller passes two functions. The fast path serves requests without the application. The other
function renders the responses to rejected requests. So the server does not depend on keys, users,
JSON or log formats. Requests with ambiguous framing are rejected (RFC 9112, section 11.2).
"""
