"""An HTTP/1.1 server for any `tornado.web.Application`.

Modules, in the order in which a request meets them:

- `server`: sockets, admission of connections, drain.
- `connections`: the open connections, their number and their timeouts.
- `connection`, `state`: one connection: its states, back-pressure, one request at a time.
- `parser`, `head`, `body`: bytes to requests, without I/O. Framing that two readers could
  understand differently is rejected (RFC 9112, section 11.2).
- `fair_queue`: the order of requests from unauthenticated clients.
- `exchange`: one request and its response; what Tornado calls ``request.connection``.
- `fast_path`: answers a request from its bytes, without the application.
- `trusted_proxies`: the client's address behind proxies.

It knows nothing of keys, users, JSON or log formats: responses to requests that are rejected
before the application sees them come from a function it is given.
"""
