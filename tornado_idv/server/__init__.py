"""Sockets, signals and limits: how the application is put on the network and taken off.

Read it in the order of a request.

`listener` opens sockets and counts what is open. Each connection is a `connection.Connection`
(an `asyncio.Protocol`): it collects bytes until a request is whole, one request at a time, and
leaves when its caller is too slow, too large or gone. The head is parsed by llhttp and judged
(`head`: may two readers disagree about where this request ends? then it is refused), and the
body is cut off by its length or chunk by chunk (`body`). Mostly a request has the head of the one
before, byte by byte: then that is known (`last_head`), and what the packet cache can answer it
answers here (`web.packets`).

A whole request becomes an `exchange.Exchange`. That is the only place where Tornado is met:
`tornado.web.Application` is an `HTTPServerConnectionDelegate`, and whoever calls its
``start_request``, ``headers_received``, ``data_received``, ``finish`` and gives it an
`HTTPConnection` to answer through, serves it. So the same application runs on Tornado's own
`HTTPServer`, and here Tornado's pure Python parser is not run at all. The exchange writes the
answer as bytes, and the connection goes on to the next request: answers leave in the order of
the questions.

A connection that has shown a valid key is served as soon as a request is complete; all others
wait in a `fair_queue`, so that a flood of invalid keys delays other traffic by little. They also
may send less ahead. TLS connections come from a `tls_acceptor`, which bounds pending handshakes.

What is refused before there is a handler gets the same error record as everything else
(`web.answers`), and then the connection is closed.

`service` puts the whole together from the settings, `run` is one process from start to stop.
"""
